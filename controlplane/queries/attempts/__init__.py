"""Reads for the cells' requests about attempts: group specs, launch context, gang, artifacts."""
