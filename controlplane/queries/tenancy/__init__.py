"""Tokens and secrets of users and projects."""
