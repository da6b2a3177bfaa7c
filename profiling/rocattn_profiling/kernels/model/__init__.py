"""Cost models for machine code: issue cycles, loops, occupancy."""
