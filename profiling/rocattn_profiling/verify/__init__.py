"""``rocattn verify``: check every backend against float64."""
