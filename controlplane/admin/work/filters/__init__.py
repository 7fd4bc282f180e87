"""Filters of lists of work, which indexes serve."""
