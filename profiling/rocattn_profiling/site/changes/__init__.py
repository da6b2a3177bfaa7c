"""Change points of stored series."""
