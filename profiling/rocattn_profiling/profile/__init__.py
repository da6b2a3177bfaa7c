"""``rocattn profile``: run AMD's profilers, read their output, and report on it."""
