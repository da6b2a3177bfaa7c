"""Running profilers: finding them, splitting counters into passes, and diagnosing failures."""
