"""Limit what callers may take: the address of a caller, token buckets, and events for Flower."""
