"""Limit what callers may take: the address of a caller, and token buckets."""
