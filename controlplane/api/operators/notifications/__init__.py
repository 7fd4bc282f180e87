"""Endpoints of notifications: their addresses and rules."""
