"""Callbacks: where they may go, how they are signed, and when they are retried."""
