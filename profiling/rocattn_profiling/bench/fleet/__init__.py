"""``rocattn bench`` on several nodes of a Slurm cluster."""
