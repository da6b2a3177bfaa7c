"""Results measured by other programs, read from files and compared."""
