"""Placement: from a snapshot of one pool to a plan, with reasons for waiting tasks."""
