"""``rocattn memory``: peak memory against sequence length."""
