"""Jobs to learn from and to try a stack with; `python -m examples.run` runs them all."""
