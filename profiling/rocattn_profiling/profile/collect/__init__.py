"""Running profilers: finding them, counters in passes, what went wrong."""
