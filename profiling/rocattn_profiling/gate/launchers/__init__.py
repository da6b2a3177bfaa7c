"""Launchers for benchmarks other than asv suites: pytest-benchmark tests, and commands."""
