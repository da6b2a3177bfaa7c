"""Work with asv: its result store, its series, and launches of its benchmarks in old environments."""
