"""Cells: registration, synchronisation, reports, health, keys."""
