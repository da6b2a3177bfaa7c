"""Machine code of both sides: where it comes from, and how each kernel changed."""
