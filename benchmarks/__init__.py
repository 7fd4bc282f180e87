"""Benchmarks: `python -m benchmarks` runs them, docs/benchmarks.md describes what each measures."""
