"""Metrics of counters: definitions, formulas, evaluation."""
