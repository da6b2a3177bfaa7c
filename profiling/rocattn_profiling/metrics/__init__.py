"""Facts of GPUs, and what is computed with them."""
