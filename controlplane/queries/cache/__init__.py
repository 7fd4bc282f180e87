"""Reads of the result cache: due tasks, entries, reservations."""
