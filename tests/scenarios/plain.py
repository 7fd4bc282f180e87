"""A job's state, told again in plain words from its tasks' states alone: nothing of the domain."""

from collections.abc import Sequence
from dataclasses import dataclass

ENDED = ("SUCCEEDED", "FAILED", "KILLED", "WORKER_FAILED", "UNSCHEDULABLE", "PREEMPTED")


@dataclass(frozen=True, slots=True)
class PlainGroup:
    """The states of its tasks; what was written as its minimum, if anything was."""

    states: Sequence[str]
    minimum: int | None = None


def plain_end(groups: Sequence[PlainGroup], *, minimum: int | None, tolerated: int) -> str:
    """How a job ends whose tasks have all ended."""
    states = [state for group in groups for state in group.states]
    assert all(state in ENDED for state in states)
    is_explicit = minimum is not None or any(group.minimum is not None for group in groups)
    least = sum(len(g.states) if g.minimum is None else g.minimum for g in groups)
    of_all = least if minimum is None else minimum
    if all(state == "SUCCEEDED" for state in states):
        return "SUCCEEDED"
    if states.count("FAILED") > tolerated:
        return "FAILED"
    for decisive in ("UNSCHEDULABLE", "KILLED"):
        if decisive in states:
            return decisive
    if is_explicit and volcano(groups, of_all):
        return "SUCCEEDED"
    if "WORKER_FAILED" in states or "PREEMPTED" in states:
        return "WORKER_FAILED"
    return "SUCCEEDED" if not is_explicit and "SUCCEEDED" in states else "FAILED"


def volcano(groups: Sequence[PlainGroup], of_all: int) -> bool:
    """Volcano: each group has its minimum of successes, and the job has its own."""
    successes = [list(group.states).count("SUCCEEDED") for group in groups]
    for group, count in zip(groups, successes, strict=True):
        if group.minimum is not None and count < group.minimum:
            return False
    return sum(successes) >= of_all
