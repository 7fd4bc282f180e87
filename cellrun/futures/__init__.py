"""Futures of commands, Python functions and jobs, resolved by one stream of events."""
