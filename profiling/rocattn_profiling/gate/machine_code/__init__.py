"""Machine code of both sides: where it is found, and what became of each kernel."""
