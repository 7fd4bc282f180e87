"""Benchmarks: `python -m benchmarks` runs them, docs/benchmarks.md says what each measures."""
