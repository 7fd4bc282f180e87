"""Containers on Docker Engine, or on Podman, through the Engine API."""
