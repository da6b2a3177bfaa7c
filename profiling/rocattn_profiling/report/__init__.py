"""Reports and pages: pure functions of records."""
