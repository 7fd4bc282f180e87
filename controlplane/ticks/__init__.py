"""Ticks: beat, or a wake, lands here; each locks, loads, decides, applies and records."""
