"""Endpoints for cells: signed requests about their own attempts, and signed links to files."""
