"""What fails here says how to have it again: `reproduce_failure`, and no memory between runs."""

from hypothesis import settings

settings.register_profile("cellrun", database=None, print_blob=True, deadline=None)
settings.load_profile("cellrun")
