"""Submission with a concurrency key: whether the job fits, and which jobs it replaces; pure."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from controlplane.domain.errors import Conflict
from controlplane.domain.jobs.submission import PlannedJob, concurrency_of

# Jobs that one submission may cancel: they are locked and ended in its transaction.
MOST_REPLACED = 1_000


class ConcurrencyKeyFull(Conflict):
    """The jobs with the concurrency key of the job at `position` use its limit up."""

    def __init__(self, position: int, text: str) -> None:
        super().__init__(text)
        self.position = position


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """An unfinished job with the key: its tasks that have not ended. `is_ending`: it is stopped."""

    job_id: int
    owner_id: int
    open_tasks: int
    is_ending: bool = False


def may_conflict(job: PlannedJob) -> bool:
    """Return whether other jobs with its key may prevent the submission, or end by it."""
    rule = job.spec.concurrency
    return rule is not None and rule.on_conflict != "wait"


def judge_keys(
    jobs: Sequence[PlannedJob],
    holders: Mapping[int, Sequence[KeyHolder]],
    leaving: Collection[int] = (),
) -> dict[int, list[int]]:
    """Apply `on_conflict`: return by position the jobs that each job replaces, oldest first.

    A job fits while the open tasks of the others and its own are within its limit; a job with more
    tasks than the limit fits if there are no others. `holders`: by id of the key, oldest first.
    `leaving`: jobs that these jobs replace by name or by schedule. Raise ConcurrencyKeyFull.
    """
    earlier: dict[int, int] = defaultdict(int)
    gone = set(leaving)
    replaced: dict[int, list[int]] = {}
    for job in jobs:
        rule, item = concurrency_of(job.spec, job.project_id), job.spec.concurrency
        if rule is None or item is None:
            continue
        tasks = sum(len(group.indices) for group in job.groups)
        if rule.limit is not None and may_conflict(job):
            there = [one for one in holders.get(rule.key_id, ()) if one.job_id not in gone]
            if item.on_conflict == "replace":
                there = [one for one in there if not one.is_ending]
            room = rule.limit - min(tasks, rule.limit) - earlier[rule.key_id]
            chosen = _choose(job, there, room) if item.on_conflict == "replace" else []
            rest = [one for one in there if one.job_id not in chosen]
            if sum(one.open_tasks for one in rest) > room:
                raise _refuse(job, rest, tasks, earlier[rule.key_id])
            if len(chosen) > MOST_REPLACED:
                text = f"concurrency key {rule.key}: the job would replace {len(chosen)} jobs"
                raise ConcurrencyKeyFull(
                    job.position, f"{text}, at most {MOST_REPLACED} are allowed"
                )
            if chosen:
                replaced[job.position] = chosen
                gone.update(chosen)
        earlier[rule.key_id] += tasks
    return replaced


def _choose(job: PlannedJob, there: Sequence[KeyHolder], room: int) -> list[int]:
    """Return the oldest jobs of the same user without which the others are within `room`."""
    excess, chosen = sum(one.open_tasks for one in there) - room, list[int]()
    for one in there:
        if excess <= 0:
            break
        if one.owner_id == job.owner_id:
            chosen.append(one.job_id)
            excess -= one.open_tasks
    return chosen


def _refuse(
    job: PlannedJob, there: Sequence[KeyHolder], tasks: int, earlier: int
) -> ConcurrencyKeyFull:
    item = job.spec.concurrency
    assert item is not None, "a job without a key is not refused"
    others = sum(one.open_tasks for one in there) + earlier
    text = (
        f"concurrency key {item.key} is full: {others} open task{'s' * (others != 1)} of"
        f" {_name(there, earlier)}"
        f" + {tasks} of this job > {item.limit} allowed (on_conflict: {item.on_conflict})"
    )
    if item.on_conflict == "replace" and there:
        text += "; only your own jobs are replaced"
    return ConcurrencyKeyFull(job.position, text)


def _name(there: Sequence[KeyHolder], earlier: int) -> str:
    named = [f"job {one.job_id}" for one in there[:3]]
    if len(there) > len(named):
        named.append(f"{len(there) - len(named)} more jobs")
    if earlier:
        named.append("earlier jobs of this submission")
    return " and ".join(named)
