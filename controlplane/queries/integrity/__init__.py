"""Rows of invariants and recounts."""
