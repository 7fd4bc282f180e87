"""Callbacks over HTTP to untrusted receivers."""
