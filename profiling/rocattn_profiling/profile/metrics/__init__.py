"""Metrics computed from counters: definitions, formulas, evaluation."""
