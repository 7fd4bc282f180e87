"""Reads for decisions about jobs."""
