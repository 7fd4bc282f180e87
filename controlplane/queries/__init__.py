"""Reads: rows and snapshots, never a write."""
