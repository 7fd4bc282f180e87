"""Callbacks: permitted addresses, signatures and retries."""
