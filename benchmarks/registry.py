"""All benchmarks, in the order in which they run."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import (
    cached,
    cancel,
    containers,
    futures,
    growth,
    history,
    idle,
    killed_fleet,
    latency,
    matrix,
    memory,
    offered,
    pages,
    placing,
    processes,
    queues,
    recovery,
    retention,
    snapshots,
    store,
    sweep,
    throughput,
    unplaceable,
)
from benchmarks.description import Description, Options
from benchmarks.report import Result


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A description and the function that measures."""

    about: Description
    run: Callable[[Options], Result]


MODULES = (
    throughput,
    matrix,
    queues,
    sweep,
    placing,
    latency,
    containers,
    processes,
    history,
    idle,
    memory,
    killed_fleet,
    offered,
    snapshots,
    recovery,
    growth,
    cached,
    cancel,
    futures,
    pages,
    retention,
    store,
    unplaceable,
)
ALL = {module.ABOUT.id: Benchmark(module.ABOUT, module.run) for module in MODULES}
