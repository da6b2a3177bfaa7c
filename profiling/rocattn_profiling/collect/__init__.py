"""Running AMD's profilers: find them, plan passes that the hardware takes, run them, and say in a line what failed."""
