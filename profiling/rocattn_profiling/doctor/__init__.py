"""``rocattn doctor``: check what this machine has and lacks."""
