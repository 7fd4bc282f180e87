"""The commands of Slurm for a Cellrun: they parse Slurm's options and call the public client."""
