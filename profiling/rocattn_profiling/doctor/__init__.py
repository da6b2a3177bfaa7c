"""``rocattn doctor``: what this machine has, and what is missing."""
