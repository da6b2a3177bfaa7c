"""What is measured: grids, inputs, modules, models, and how far an output may be from float64."""
