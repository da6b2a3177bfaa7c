"""Workloads: grids, inputs, modules, models, and the allowed error relative to float64."""
