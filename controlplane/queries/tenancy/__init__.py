"""Tokens and secrets of users and projects, and the audit log."""
