"""Likely causes of regressions: what changed in the code that a benchmark runs."""
