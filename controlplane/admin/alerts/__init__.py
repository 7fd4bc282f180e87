"""Alerts: what they mean, what to do, their subjects, and the work that they affect."""
