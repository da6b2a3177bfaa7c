"""``rocattn plan``: the kernel launches of one attention problem."""
