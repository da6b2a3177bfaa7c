"""``rocattn kernels``: building the GPU kernels and auditing their machine code."""
