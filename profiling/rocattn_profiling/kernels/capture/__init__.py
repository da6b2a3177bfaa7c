"""Capture the Triton kernels that a program would launch, compiled for GPUs that are not installed."""
