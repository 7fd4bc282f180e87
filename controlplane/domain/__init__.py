"""Decisions, pure: data in, data out. No Django, no I/O, no clock, no randomness."""
