"""Between the model and the rows: learns what the model cannot know, and compares the rest."""

import json
from collections import Counter
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from controlplane.contract.states import TaskState as S
from controlplane.models import Alert, Cell, DeadLetter, TickState
from controlplane.queries.integrity.invariants import check_all
from controlplane.queries.sql import rows
from tests.integration.loop.model import (
    Attempt,
    Dependency,
    Group,
    Job,
    Task,
    job_standing,
)
from tests.integration.loop.model_ticks import Model
from tests.properties import restatement as text
from tests.properties.restatement import ACTIVE

START = timedelta(seconds=60)
SLOTS = 8
"""How many containers a cell prepares at the same time, unless its pool sets another number."""


def cells() -> dict[int, tuple[str, bool]]:
    """By id: its present incarnation, and whether it is lost."""
    found = Cell.objects.values_list("pk", "incarnation", "state")
    return {pk: (incarnation, state == "LOST") for pk, incarnation, state in found}


def cell_ids() -> dict[str, int]:
    """Ids by name."""
    return dict(Cell.objects.values_list("name", "pk"))


def covered_at() -> datetime | None:
    """Return when the last complete pass of placement began."""
    return TickState.objects.filter(name="placement").values_list("covered_at", flat=True).first()


# ------------------------------------------------------------------------------ learning


def learn(model: Model, job_id: int) -> None:
    """Add a submitted job to the model, with its defaults."""
    (row,) = rows(
        """
        SELECT id, name, min_available, explicit_minimum, max_task_failures, coscheduled,
               make_interval(secs => scheduling_timeout_seconds), parent_id, retry_of_id,
               waits_for_jobs
        FROM controlplane_job WHERE id = %s
        """,
        [job_id],
    )
    job = Job(*row)
    for found in rows(
        """
        SELECT id, name, min_available, retries_failure, retries_preemption,
               retries_system, at_most_once, exclusive, depends_on,
               make_interval(secs => timeout_seconds), deadline_at, startable_at IS NOT NULL,
               task_count < replicas, COALESCE(retry_rules, '[]')::text
        FROM controlplane_taskgroup WHERE job_id = %s ORDER BY position
        """,
        [job_id],
    ):
        key, name, minimum, *limits, once, exclusive, waits, timeout, end, may, rest, rules = found
        depends_on = [(item["group"], item["until"]) for item in json.loads(waits)]
        group = Group(
            key,
            job,
            name,
            minimum,
            tuple(limits),
            once,
            exclusive,
            depends_on,
            timeout,
            end,
            may,
            rest,
            json.loads(rules),
        )
        statement = "SELECT id FROM controlplane_task WHERE group_id = %s ORDER BY index"
        group.tasks = [Task(task_id, group) for (task_id,) in rows(statement, [key])]
        job.groups.append(group)
    statement = "SELECT on_job_id, until FROM controlplane_jobdependency WHERE job_id = %s"
    for on, until in rows(statement, [job_id]):
        standing = job_standing(model.jobs[on], until)
        found_so = Dependency(on, until, standing == "satisfied", standing == "impossible")
        job.dependencies.append(found_so)
    model.jobs[job_id] = job


def learn_placements(model: Model, now: datetime) -> None:
    """Placement ran: it may have placed these, and had to place all that it could."""
    before = {task.id: task for task in model.tasks()}
    placed = rows(
        """
        SELECT a.task_id, a.uid::text, a.cell_id, a.incarnation, a.start_before, a.state_since
        FROM controlplane_attempt a JOIN controlplane_task t ON t.attempt_uid = a.uid
        WHERE t.state = 9 AND a.created_at = %s ORDER BY a.task_id
        """,
        [now],
    )
    ready = {c.pk: c for c in Cell.objects.filter(state="READY")}
    for task_id, uid, cell_id, incarnation, start_before, since in placed:
        task = before[task_id]
        assert may_be_placed(task, now), f"task {task_id} was placed"
        assert cell_id in ready
        assert ready[cell_id].incarnation == incarnation
        assert start_before == now + START
        task.attempts.append(Attempt(uid, cell_id, incarnation, start_before, since))
        task.state, task.not_before = S.ASSIGNED, None
    free = free_of(model, ready)
    assert min(free.values(), default=0) >= 0
    touched = {t.group.job.id: t.group.job for t in (before[item[0]] for item in placed)}
    for job in touched.values():
        if job.coscheduled:
            groups = job.restated().groups
            assert text.holds(groups, job.minimum, text.present_of(groups)), f"job {job.id}"
    check_nothing_was_left(model, free, now)
    model.follow(touched.values())


def may_be_placed(task: Task, now: datetime) -> bool:
    """Whether the task waits for nothing but a place."""
    job = task.group.job
    is_blocked = job.has_ended or job.ending_as is not None or job.is_requeuing or job.waits
    is_ready = task.not_before is None or task.not_before <= now
    waits = task.state is S.PENDING and task.held is None
    return waits and task.group.is_startable and is_ready and not is_blocked


def free_of(model: Model, ready: dict[int, Cell]) -> dict[int, int]:
    """Free places by cell; a task takes one core."""
    held = Counter(task.held.cell_id for task in model.tasks() if task.held)
    return {pk: cell.capacity["cpu_millis"] // 1000 - held[pk] for pk, cell in ready.items()}


def slots_of(model: Model, free: dict[int, int]) -> dict[int, int]:
    """How many more containers each cell may begin to prepare: a pool's cells, eight at a time."""
    building = Counter(
        task.held.cell_id
        for task in model.tasks()
        if task.held and task.state in (S.ASSIGNED, S.BUILDING)
    )
    return {pk: max(SLOTS - building[pk], 0) for pk in free}


def check_nothing_was_left(model: Model, free: dict[int, int], now: datetime) -> None:
    """What still waits for a place alone fits nowhere; a gang's minima do not fit together.

    Room that is kept for others is none. Start slots limit all but the minima of gangs.
    """
    slots = slots_of(model, free)
    kept = rows(
        """
        SELECT nominated_cell_id, job_id, count(*) FROM controlplane_task
        WHERE nominated_cell_id IS NOT NULL AND nominated_until > %s AND state = 1 GROUP BY 1, 2
        """,
        [now],
    )
    for job in model.living():
        waiting = [task for task in job.tasks() if may_be_placed(task, now)]
        avoided = {cell_id for task in waiting for cell_id in avoided_by(task, free)}
        others: Counter[int] = Counter()
        for cell_id, job_id, count in kept:
            others[cell_id] += count if job_id != job.id else 0
        spare = {
            cell_id: max(count - others[cell_id], 0)
            for cell_id, count in free.items()
            if cell_id not in avoided
        }
        startable = sum(min(count, slots[cell_id]) for cell_id, count in spare.items())
        if not job.coscheduled:
            assert not (waiting and startable), f"job {job.id} waits, {startable} places are free"
            continue
        pending = [task for task in job.tasks() if task.state is S.PENDING]
        fewest = text.fewest(job.restated().groups, job.minimum)
        if fewest is None or len(waiting) < len(pending):
            continue
        need = max(fewest, 1) if waiting else 0
        room = sum(spare.values()) if fewest else startable
        assert not (need and room >= need), f"gang {job.id} needs {need}, {room} places are free"


def avoided_by(task: Task, cells: Collection[int]) -> Collection[int]:
    """Where the task does not go: all that failed it, or, where these are all there are, the last.

    All cells are of one size; the last of them takes what no other is there for.
    """
    avoided = [cell_id for cell_id in task.avoids if cell_id in cells]
    for some in (avoided, avoided[-1:]):
        if set(some) != set(cells):
            return some
    return ()


# ----------------------------------------------------------------------------- comparing


def check(model: Model) -> None:
    """All of it agrees, no invariant is violated, and nothing was swept aside."""
    compare("task", task_rows(), {task.id: task_columns(task) for task in model.tasks()})
    learn_back_offs(model)
    attempts = [attempt for task in model.tasks() for attempt in task.attempts]
    compare("attempt", attempt_rows(), {a.uid: attempt_columns(a) for a in attempts})
    compare("job", job_rows(), {job.id: job_columns(job) for job in model.living()})
    groups = [group for job in model.living() for group in job.groups]
    compare("group", group_rows(), {group.id: group.is_startable for group in groups})
    waits = {
        (job.id, item.on, item.until): (item.is_met, item.is_failed)
        for job in model.living()
        for item in job.dependencies
    }
    compare("dependency", dependency_rows(), waits)
    violations = check_all()
    assert not violations, "; ".join(map(str, violations))
    assert not Alert.objects.filter(kind="job_skipped").exists()
    assert not DeadLetter.objects.exists()


def compare(what: str, found: Mapping[Any, object], wanted: Mapping[Any, object]) -> None:
    """The same, or what differs in which of them."""
    differ = [
        f"{what} {key}: the database has {found.get(key)}, the model {wanted.get(key)}"
        for key in sorted({*found, *wanted})
        if found.get(key) != wanted.get(key)
    ]
    assert not differ, "; ".join(differ)


def task_columns(task: Task) -> tuple[object, ...]:
    """As `task_rows` has it."""
    used = task.used
    return (
        task.state,
        (used.failure, used.preemption, used.system, used.system_row, used.refusal_row),
        used.consecutive_crashes,
        (len(task.attempts), task.held is not None),
        task.has_started,
        task.state not in (S.PENDING, *ACTIVE),
    )


def task_rows() -> dict[int, tuple[object, ...]]:
    """Return the columns of tasks in the database."""
    found = rows(
        """
        SELECT id, state, failure_count, preemption_count, system_failure_count, system_row,
               refusal_row, consecutive_crashes, attempt_number, attempt_open,
               started_at IS NOT NULL, finished_at IS NOT NULL
        FROM controlplane_task
        """
    )
    return {
        key: (S(state), tuple(rest[:5]), rest[5], tuple(rest[6:8]), rest[8], rest[9])
        for key, state, *rest in found
    }


def learn_back_offs(model: Model) -> None:
    """Each back-off is within its bounds, give and take its jitter."""
    found = dict(rows("SELECT id, not_before FROM controlplane_task"))
    for task in model.tasks():
        if task.backs_off is not None:
            least, most = task.backs_off
            until = found[task.id]
            assert until is not None
            assert least <= until <= most, f"task {task.id} waits until {until}"
            task.not_before, task.backs_off = found[task.id], None
        assert found[task.id] == task.not_before, f"task {task.id}"


def attempt_columns(attempt: Attempt) -> tuple[object, ...]:
    """As `attempt_rows` has it."""
    return (attempt.state, attempt.release, attempt.charged, attempt.charge, attempt.rule)


def attempt_rows() -> dict[str, tuple[object, ...]]:
    """Return the columns of attempts in the database."""
    columns = "uid::text, state, release_kind, charged, charge, retry_rule"
    found = rows(f"SELECT {columns} FROM controlplane_attempt")
    return {uid: (S(state), *rest) for uid, state, *rest in found}


def job_columns(job: Job) -> tuple[object, ...]:
    """As `job_rows` has it."""
    facts = (job.is_requeuing, job.waits, job.has_started, job.is_settled, job.is_deleted)
    return (job.state, job.ending_as, facts, job.parent)


def job_rows() -> dict[int, tuple[object, ...]]:
    """Return the columns of jobs in the database."""
    found = rows(
        """
        SELECT id, state, ending_as, is_requeuing, waits_for_jobs, started_at IS NOT NULL,
               settled_at IS NOT NULL, deleted_at IS NOT NULL, parent_id
        FROM controlplane_job
        """
    )
    return {
        key: (S(state), ending and S(ending), tuple(rest[:5]), rest[5])
        for key, state, ending, *rest in found
    }


def group_rows() -> dict[int, bool]:
    """Which groups may start."""
    return dict(rows("SELECT id, startable_at IS NOT NULL FROM controlplane_taskgroup"))


def dependency_rows() -> dict[tuple[int, int, str], tuple[bool, bool]]:
    """What jobs wait for."""
    found = rows(
        """
        SELECT job_id, on_job_id, until, met_at IS NOT NULL, failed_at IS NOT NULL
        FROM controlplane_jobdependency
        """
    )
    return {(row[0], row[1], row[2]): (row[3], row[4]) for row in found}
