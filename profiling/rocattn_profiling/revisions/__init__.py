"""Git revisions, and the environments that projects are built in."""
