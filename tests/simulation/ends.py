"""What must be true of each job when all is quiet: how it ended, and how its gang got there."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.states import ACTIVE, Reason
from controlplane.queries.sql import rows
from tests.simulation.jobs import End, Submitted
from tests.simulation.submitters import load_end
from tests.simulation.world import World

_PRESENT = frozenset({*ACTIVE, S.SUCCEEDED})


def check_ends(world: World) -> list[str]:
    """What is wrong with the ends of jobs, in words."""
    found = {job: job.end or load_end(job.job_id) or job.seen for job in world.jobs}
    ends = {job: end for job, end in found.items() if end is not None}
    wrong: list[str] = []
    for job, end in ends.items():
        is_peace = job.in_peace and not world.are_cells_disturbed
        wrong += _check_end(job, end, job.in_peace if is_peace else job.expected, ends)
    for job in ends:
        if job.body.get("coscheduled") and not job.is_kept:
            wrong += _check_gang(job)
    too_early = [*_given_up_too_early(world), *_given_up_unheard()]
    return [*wrong, *_ended_without_cause(), *too_early, *_tried_against_a_rule()]


def _check_end(
    job: Submitted, end: End, expected: frozenset[S], ends: dict[Submitted, End]
) -> Iterator[str]:
    if job.is_kept or not expected:
        return
    if any(_is_in_vain(ends.get(other), until) for other, until in job.waits):
        expected = frozenset({S.KILLED})
    elif job.is_replaced or _has_lost_an_ancestor(job, ends):
        expected |= {S.KILLED}
    if end.state not in expected:
        names = ", ".join(sorted(state.name for state in expected))
        yield f"job {job.job_id} is {end.state.name} ({end.reason}), expected {names}"


def _is_in_vain(end: End | None, until: str) -> bool:
    if end is None:
        return False
    if until == "started":
        return not end.was_started and end.state is not S.SUCCEEDED
    return until == "succeeded" and end.state is not S.SUCCEEDED


def _has_lost_an_ancestor(job: Submitted, ends: dict[Submitted, End]) -> bool:
    parent = job.parent
    while parent is not None:
        end = ends.get(parent)
        if end is not None and end.state is not S.SUCCEEDED:
            return True
        parent = parent.parent
    return False


def _ended_without_cause() -> list[str]:
    """Jobs that were ended for another one's sake, though that one gives no cause."""
    found = rows(
        """
        SELECT j.id, j.ending_reason FROM controlplane_job j
        LEFT JOIN controlplane_job p ON p.id = j.parent_id
        WHERE (j.ending_reason = %(parent)s AND p.state = %(succeeded)s)
           OR (j.ending_reason = %(failed)s AND NOT EXISTS (
                SELECT FROM controlplane_jobdependency d
                LEFT JOIN controlplane_job o ON o.id = d.on_job_id
                WHERE d.job_id = j.id AND coalesce(o.state, 0) <> %(succeeded)s))
        """,
        {
            "parent": Reason.PARENT_ENDED.value,
            "failed": Reason.JOB_DEPENDENCY_FAILED.value,
            "succeeded": int(S.SUCCEEDED),
        },
    )
    return [f"job {job_id} was ended without cause: {reason}" for job_id, reason in found]


def _given_up_too_early(world: World) -> list[str]:
    """Tasks that FAILED by themselves, though their program did not fail as often as it may."""
    found = rows(
        """
        SELECT t.id, g.retries_failure FROM controlplane_task t
        JOIN controlplane_taskgroup g ON g.id = t.group_id
        JOIN controlplane_attempt a ON a.uid = t.attempt_uid
        WHERE t.state = %s AND a.charged = 'failure'
          AND NOT COALESCE(g.retry_rules @> '[{"do": "fail"}]', false)
          AND t.failure_reason NOT LIKE '%%of on_exit increases %%'
        """,
        [int(S.FAILED)],
    )
    failed = Counter(seen.task_id for seen in world.witness.all() if seen.has_failed)
    return [
        f"task {task_id} FAILED after {failed[task_id]} failures, {retries} retries were left"
        for task_id, retries in found
        if failed[task_id] <= retries
    ]


def _tried_against_a_rule() -> list[str]:
    """A rule that fails leaves no second failure of a task; drawn ones match any exit status."""
    found = rows(
        """
        SELECT a.task_id, count(*) FROM controlplane_attempt a
        JOIN controlplane_taskgroup g ON g.id = a.group_id
        WHERE g.retry_rules @> '[{"do": "fail"}]' AND a.charged = 'failure'
        GROUP BY a.task_id HAVING count(*) > 1
        """
    )
    return [f"task {task_id} failed {count} times against a rule" for task_id, count in found]


def _given_up_unheard() -> list[str]:
    """What runs at most once waits for its cell's word, however late its order is."""
    found = rows(
        """
        SELECT a.uid FROM controlplane_attempt a
        JOIN controlplane_taskgroup g ON g.id = a.group_id AND g.at_most_once
        WHERE a.reason = %s
        """,
        [Reason.START_EXPIRED.value],
    )
    return [f"attempt {uid} runs at most once, and was given up unheard" for (uid,) in found]


# ---------------------------------------------------------------------- gangs, by their history


def _check_gang(job: Submitted) -> list[str]:
    """Placed whole each time; and below its minima, it goes back whole before it is placed."""
    found = rows(
        """
        SELECT h.at, h.task_id, g.name, h.to_state, h.reason FROM controlplane_transition h
        JOIN controlplane_task t ON t.id = h.task_id
        JOIN controlplane_taskgroup g ON g.id = t.group_id
        WHERE h.job_id = %s AND h.to_state <> h.from_state ORDER BY h.id
        """,
        [job.job_id],
    )
    gang = _Gang(job)
    for (_, is_placing), steps in groupby(found, key=lambda row: (row[0], row[4] == Reason.PLACED)):
        gang.follow([(task_id, group, S(state)) for _, task_id, group, state, _ in steps])
        if is_placing:
            gang.was_placed()
        else:
            gang.was_moved()
    return gang.wrong


class _Gang:
    """Its members' states, step by step. `below`: what must end before a task is placed."""

    def __init__(self, job: Submitted) -> None:
        self._job = job
        self._states: dict[int, tuple[str, S]] = {}
        self._below: set[int] = set()
        self.wrong: list[str] = []

    def follow(self, steps: Iterable[tuple[int, str, S]]) -> None:
        for task_id, group, state in steps:
            self._states[task_id] = group, state
            if state not in ACTIVE:
                self._below.discard(task_id)

    def was_placed(self) -> None:
        if not self._meets_minima():
            self.wrong.append(f"the gang of job {self._job.job_id} was placed in part")
        if self._below:
            text = f"the gang of job {self._job.job_id} was placed again before all had gone back"
            self.wrong.append(text)

    def was_moved(self) -> None:
        if not self._meets_minima():
            self._below |= {
                task_id
                for task_id, (group, state) in self._states.items()
                if state in ACTIVE and not self._is_once(group)
            }

    def _is_once(self, name: str) -> bool:
        (group,) = (group for group in self._job.body["groups"] if group["name"] == name)
        return group.get("delivery", self._job.body.get("delivery")) == "at_most_once"

    def _meets_minima(self) -> bool:
        present = Counter(group for group, state in self._states.values() if state in _PRESENT)
        each = all(
            present[group["name"]] >= group.get("min_available", group["replicas"])
            for group in self._job.body["groups"]
        )
        return each and present.total() >= self._job.minimum()
