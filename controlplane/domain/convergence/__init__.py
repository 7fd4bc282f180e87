"""Convergence decisions: one module per rule of `commands.convergence.rules`."""
