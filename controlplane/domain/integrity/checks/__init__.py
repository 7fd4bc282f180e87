"""The checks behind the invariants, by subject."""
