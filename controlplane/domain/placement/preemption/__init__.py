"""Preemption and reservations: which attempts give way, and for which tasks."""
