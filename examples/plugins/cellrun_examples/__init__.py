"""Example plugins of each kind, explained in docs/plugins.md."""
