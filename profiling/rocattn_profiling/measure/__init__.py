"""Measuring: workloads, inputs, sampling in fresh processes, records, checks against float64."""
