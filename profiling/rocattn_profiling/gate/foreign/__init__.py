"""Results that other programs measured: read from a file, and compared."""
