"""Registrations, heartbeats, probes, and what operators order of cells."""
