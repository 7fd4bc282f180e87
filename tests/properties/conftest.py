"""Failures here print how to reproduce them: `reproduce_failure`, no memory between runs.

The same source draws the same examples; `--soak` draws at random, as for simulated courses.
"""

import sys

from hypothesis import settings

settings.register_profile(
    "cellrun",
    database=None,
    print_blob=True,
    deadline=None,
    derandomize="--soak" not in sys.argv,
)
settings.load_profile("cellrun")
