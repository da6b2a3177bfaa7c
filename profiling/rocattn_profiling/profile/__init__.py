"""``rocattn profile``: running AMD's profilers, reading what they write, and reporting on it."""
