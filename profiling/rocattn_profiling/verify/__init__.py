"""``rocattn verify``: every backend against float64."""
