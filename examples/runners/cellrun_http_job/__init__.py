"""A runner that drives jobs of an HTTP service."""
