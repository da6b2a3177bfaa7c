"""The gate: measure two revisions side by side, decide on process launches, print the verdict."""
