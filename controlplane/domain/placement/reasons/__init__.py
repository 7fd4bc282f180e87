"""Pending reasons: why a task waits, as figures and as a text."""
