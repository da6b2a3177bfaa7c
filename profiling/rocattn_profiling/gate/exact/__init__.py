"""Exact comparisons: machine code and kernel launch plans."""
