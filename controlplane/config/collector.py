"""Tune the garbage collector of a process of the control plane."""

import gc

_THRESHOLDS = (20_000, 20, 20)


def relax_collector() -> None:
    """Let the garbage collector run less often, and skip what the start has allocated.

    A full collection of what web allocates at its start takes 130 ms, and each 26th page waited
    for one.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
