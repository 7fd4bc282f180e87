"""A job's final state in plain words, from the seeds' text and the tasks' states alone.

Sources: Iris "Job State Derivation" for the order, and Volcano "Support MinAvailable For Task
Level" for minima. Nothing of the domain is imported.
"""

from collections.abc import Sequence
from dataclasses import dataclass

ENDED = ("SUCCEEDED", "FAILED", "KILLED", "WORKER_FAILED", "UNSCHEDULABLE", "PREEMPTED")


@dataclass(frozen=True, slots=True)
class PlainGroup:
    """The states of a group's tasks. `minimum`: what its document has; None: nothing."""

    states: Sequence[str]
    minimum: int | None = None


def plain_end(groups: Sequence[PlainGroup], *, minimum: int | None, tolerated: int) -> str:
    """The state of a job whose tasks have all ended. `minimum`: what the job's document has."""
    states = [state for group in groups for state in group.states]
    assert all(state in ENDED for state in states)
    is_written = minimum is not None or any(group.minimum is not None for group in groups)
    if all(state == "SUCCEEDED" for state in states):
        return "SUCCEEDED"
    if states.count("FAILED") > tolerated:
        return "FAILED"
    for decisive in ("UNSCHEDULABLE", "KILLED"):
        if decisive in states:
            return decisive
    if is_written and volcano(groups, minimum):
        return "SUCCEEDED"
    if "WORKER_FAILED" in states or "PREEMPTED" in states:
        return "WORKER_FAILED"
    return "SUCCEEDED" if not is_written and "SUCCEEDED" in states else "FAILED"


def volcano(groups: Sequence[PlainGroup], minimum: int | None) -> bool:
    """Whether each group has the successes it needs, and the job has as many as it needs.

    Of a group: "Defaults to the task replicas". The form before groups had minima, in which the
    job alone has one, counts the successes of all groups together.
    """
    is_job_alone = minimum is not None and all(group.minimum is None for group in groups)
    needs = []
    for group in groups:
        if group.minimum is not None:
            needs.append(group.minimum)
        else:
            needs.append(0 if is_job_alone else len(group.states))
    successes = [list(group.states).count("SUCCEEDED") for group in groups]
    if any(count < need for count, need in zip(successes, needs, strict=True)):
        return False
    return sum(successes) >= (sum(needs) if minimum is None else minimum)
