"""Failures here print how to reproduce them: `reproduce_failure`, no memory between runs."""

from hypothesis import settings

settings.register_profile("cellrun", database=None, print_blob=True, deadline=None)
settings.load_profile("cellrun")
