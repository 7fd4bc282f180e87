"""Preemption and reservations: selection of attempts to evict and of tasks to make room for."""
