"""Writes: one function, one transaction. `effects` alone writes state columns."""
