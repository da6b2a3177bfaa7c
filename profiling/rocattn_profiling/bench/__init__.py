"""``rocattn bench``: time backends side by side in fresh processes."""
