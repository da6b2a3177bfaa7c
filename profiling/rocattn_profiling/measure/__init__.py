"""Records of measurements, their statistics, the machine they come from, and fresh processes to take them in."""
