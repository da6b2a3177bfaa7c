"""What machine code costs: issue cycles, loops, occupancy."""
