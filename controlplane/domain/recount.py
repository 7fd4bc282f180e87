"""What is derived from tasks, derived again: a group's counts, and the job's state from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from controlplane.contract.states import TaskState as S
from controlplane.domain.jobs import GroupRow, JobRow, roll_job
from controlplane.domain.states import TERMINAL


@dataclass(frozen=True, slots=True)
class Counted:
    """What the tasks of a group come to: how many are in each state, how many are excused.

    Excused: killed since a group of their job failed them, so that their job is not KILLED by it.
    """

    counts: Mapping[S, int]
    excused: int = 0


@dataclass(frozen=True, slots=True)
class Difference:
    """Something derived that is not what follows. `group_id` is None: the job's state.

    An end that was reached is not taken back: such a difference cannot be mended.
    """

    job_id: int
    group_id: int | None
    text: str
    is_mendable: bool = True


def find_differences(
    job: JobRow, groups: Sequence[GroupRow], counted: Mapping[int, Counted], *, now: datetime
) -> list[Difference]:
    """What the job and its groups say, and is not so by the states of its tasks."""
    found: list[Difference] = []
    right: list[GroupRow] = []
    for group in groups:
        group_id = group.facts.group_id
        found += [
            Difference(job.job_id, group_id, f"group {group_id} ({group.facts.name}): {text}")
            for text in _wrong_counts(group, counted[group_id])
        ]
        facts = replace(group.facts, counts=counted[group_id].counts)
        right.append(replace(group, facts=facts, killed_by_dependency=counted[group_id].excused))
    return found + _wrong_state(job, right, now)


def _wrong_counts(group: GroupRow, counted: Counted) -> list[str]:
    said, found = _in_words(group.facts.counts), _in_words(counted.counts)
    texts = [] if said == found else [f"counts {said}, its tasks are {found}"]
    if group.killed_by_dependency != counted.excused:
        says = f"says that a dependency killed {group.killed_by_dependency}"
        texts.append(f"{says}, it killed {counted.excused}")
    return texts


def _wrong_state(job: JobRow, groups: Sequence[GroupRow], now: datetime) -> list[Difference]:
    has_ended = job.state in TERMINAL
    # Looked at once more as if it had not ended: terminal is final, and would say nothing.
    follows = roll_job(replace(job, state=S.RUNNING) if has_ended else job, groups, now=now)
    if follows.state is not job.state:
        text = f"is {job.state.name}, {follows.state.name} follows from its tasks"
    elif follows.ending_as is not job.ending_as and follows.ending_as is not None:
        text = f"is not ending, {follows.ending_as.name} follows from its tasks"
    else:
        return []
    return [Difference(job.job_id, None, f"job {job.job_id}: {text}", is_mendable=not has_ended)]


def _in_words(counts: Mapping[S, int]) -> str:
    told = [f"{counts[state]} {state.name}" for state in S if counts.get(state)]
    return ", ".join(told) or "none"
