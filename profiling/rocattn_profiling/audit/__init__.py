"""Machine code of the GPU kernels: building all of it, and what its metadata says."""
