"""Launchers of what is no asv suite: tests of pytest-benchmark, and commands."""
