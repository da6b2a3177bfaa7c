"""``rocattn ci``: the main job."""
