"""``rocattn bench``: times of backends, side by side in fresh processes."""
