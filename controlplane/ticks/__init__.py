"""Ticks, which beat and wakes start: each loads facts, decides, applies and records."""
