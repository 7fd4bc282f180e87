"""Forks a process for each piece of work, so many at once, and reports how each ended."""

import json
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable
from typing import TextIO

STILLBORN = 77
"""The exit status of a mutant that cannot even be imported."""

# What a mutant may take before it counts as endless: seconds of the processor, so that a busy
# machine finds nothing, and bytes.
_MEMORY = 3 << 30

Work = Callable[[], int]
"""Runs in the fork; its result is the exit status."""


def fork(work: Work, cpu_seconds: int) -> int:
    """The process id of a child that does `work` and nothing else."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 5))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        status = work()
    finally:
        os._exit(status)


def run_all(
    works: Iterable[tuple[int, Work]], *, at_once: int, cpu_seconds: int, output: TextIO
) -> None:
    """Do all of it; write a line of JSON for each, by its number, when it ends."""
    waiting = iter(works)
    running: dict[int, tuple[int, float]] = {}
    more = True
    while more or running:
        while more and len(running) < at_once:
            number, work = next(waiting, (-1, None))
            if work is None:
                more = False
            else:
                running[fork(work, cpu_seconds)] = (number, time.monotonic())
        if running:
            pid, status = os.wait()
            number, began = running.pop(pid)
            seconds = time.monotonic() - began
            one = {"number": number, "outcome": _outcome(status), "seconds": seconds}
            print(json.dumps(one), file=output, flush=True)


def _outcome(status: int) -> str:
    if os.WIFSIGNALED(status):
        return "timeout" if os.WTERMSIG(status) == signal.SIGXCPU else "killed"
    return {0: "survived", STILLBORN: "stillborn"}.get(os.WEXITSTATUS(status), "killed")
