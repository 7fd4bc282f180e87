"""Delete jobs, then their rows and files."""
