"""Scenes that provoke the entries of docs/troubleshooting.md on a live stack."""
