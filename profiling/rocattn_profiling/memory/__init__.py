"""``rocattn memory``: peak memory over sequence length."""
