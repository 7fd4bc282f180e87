"""Callbacks that are due, and receivers that cannot be reached."""
