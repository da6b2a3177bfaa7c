"""asv's side: its store, its series, and launching its benchmarks in old environments."""
