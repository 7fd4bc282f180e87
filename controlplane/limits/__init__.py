"""Limit what callers may take of a process: the address of a caller."""
