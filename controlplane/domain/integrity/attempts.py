"""Invariants of tasks and their attempts: ownership, charges, order."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from itertools import pairwise

from controlplane.contract.states import TaskState as S
from controlplane.domain.integrity.invariant import Finding, Repair, invariant
from controlplane.domain.integrity.rows import AttemptRecord, IntegrityRows, TaskRecord
from controlplane.domain.state.effects import ChangeTask
from controlplane.domain.state.facts import TaskFacts
from controlplane.domain.state.retry_rules import read_rules
from controlplane.domain.state.states import (
    ACTIVE,
    ATTEMPT_STATES,
    TERMINAL,
    Exclusive,
    Reason,
    ReleaseKind,
    RetryAction,
)
from controlplane.domain.state.task_changes import ChangeCause, change_task
from controlplane.domain.state.transitions import Event


@invariant(
    1,
    "A task has at most one attempt that is not released.",
    upheld_by="constraint task_has_one_unreleased_attempt; statement PLACE_TASKS",
)
def one_unreleased(rows: IntegrityRows) -> Iterator[Finding]:
    for task in rows.tasks:
        held = [a for a in rows.attempts_of_task[task.id] if a.released_at is None]
        if len(held) > 1:
            yield Finding(task, f"{len(held)} attempts of it are not released")


@invariant(
    2,
    "`attempt_open` of a task is set exactly while an attempt of the task is not released; that"
    " attempt is the task's present one.",
    upheld_by="domain.state.task_changes",
    repair="`attempt_open` is set from the attempts; an active task without an attempt is requeued,"
    " free of charge, or ends WORKER_FAILED if it runs at most once",
)
def open_iff_unreleased(rows: IntegrityRows) -> Iterator[Finding]:
    for task in rows.tasks:
        held = [a.uid for a in rows.attempts_of_task[task.id] if a.released_at is None]
        others = [uid for uid in held if uid != task.attempt_uid]
        if task.attempt_open != bool(held):
            text = (
                f"{task.state.name}, attempt_open is {task.attempt_open}, unreleased: {len(held)}"
            )
            freed = Repair.REQUEUE if task.state in ACTIVE else Repair.CLOSE
            yield Finding(task, text, Repair.OPEN if held else freed, task.id)
        elif others:
            yield Finding(task, f"its present attempt is {task.attempt_uid}, not {others[0]}")


def requeue(facts: TaskFacts, *, now: datetime) -> ChangeTask:
    """Requeue an active task without an attempt, without charge (Repair.REQUEUE).

    A task that runs at most once ends WORKER_FAILED, because its outcome is unknown.
    """
    cause = ChangeCause(Reason.CONTAINER_VANISHED, "its attempt was missing")
    change = change_task(facts, Event.VANISHED, cause, now=now)
    return replace(change, counters=facts.counters)


@invariant(
    3,
    "A task is active exactly while one of its attempts is; that attempt is the present one, in the"
    " same state and not released.",
    upheld_by="domain.state.transitions and task_changes; constraint task_active_has_open_attempt",
)
def active_together(rows: IntegrityRows) -> Iterator[Finding]:
    for task in rows.tasks:
        active = [a for a in rows.attempts_of_task[task.id] if a.state in ACTIVE]
        if task.state in ACTIVE:
            present = (task.attempt_uid, task.state, None)
            if [(a.uid, a.state, a.released_at) for a in active] != [present]:
                yield Finding(task, f"{task.state.name}, but its attempts are not")
        elif active:
            yield Finding(task, f"{task.state.name}, but {active[0]} is active")


@invariant(
    4,
    "An attempt is released only after its end, and then has a release kind.",
    upheld_by="domain.state.task_changes; constraint attempt_released_after_its_end",
)
def released_in_order(rows: IntegrityRows) -> Iterator[Finding]:
    kinds = {kind.value for kind in ReleaseKind}
    for attempt in rows.attempts:
        if attempt.released_at is None:
            if attempt.release_kind:
                yield Finding(attempt, "has a release kind but is not released")
        elif attempt.release_kind not in kinds or attempt.state not in TERMINAL:
            kind = attempt.release_kind or "no release kind"
            yield Finding(attempt, f"released ({kind}) in {attempt.state.name}")


@invariant(
    5,
    "The instants of an attempt are in order: created, started, finished, released.",
    upheld_by="domain.cells.reports (a cell's clock is accepted only between creation and now)",
)
def instants_in_order(rows: IntegrityRows) -> Iterator[Finding]:
    for attempt in rows.attempts:
        instants = [
            attempt.created_at,
            attempt.started_at,
            attempt.finished_at,
            attempt.released_at,
        ]
        known = [instant for instant in instants if instant is not None]
        if known != sorted(known):
            yield Finding(attempt, "its instants are not in order")


@invariant(
    6,
    "An attempt of a task is created only after the previous attempt was released.",
    upheld_by="statement PLACE_TASKS (NOT attempt_open)",
)
def one_after_the_other(rows: IntegrityRows) -> Iterator[Finding]:
    for task in rows.tasks:
        for earlier, later in pairwise(rows.attempts_of_task[task.id]):
            if earlier.released_at is None or later.created_at < earlier.released_at:
                text = f"attempt {later.number} began before {earlier.number} was released"
                yield Finding(task, text)


@invariant(
    7,
    "Attempts of a task are numbered from 1 without gaps; the present one is the last.",
    upheld_by="constraint attempt_number_unique_in_task; commands.placement",
)
def numbered(rows: IntegrityRows) -> Iterator[Finding]:
    for task in rows.tasks:
        attempts = rows.attempts_of_task[task.id]
        if [a.number for a in attempts] != list(range(1, task.attempt_number + 1)):
            text = f"{len(attempts)} attempts, numbered up to {task.attempt_number}"
            yield Finding(task, text)
        elif task.attempt_uid != (attempts[-1].uid if attempts else None):
            yield Finding(task, "its present attempt is not its last one")


@invariant(
    8,
    "The three counters of a task are the numbers of its attempts charged to each budget: no"
    " attempt is charged twice.",
    upheld_by="commands.state.apply (compare-and-set under the job's lock)",
)
def counters_rederive(rows: IntegrityRows) -> Iterator[Finding]:
    for task in rows.tasks:
        charged: Counter[str] = Counter()
        crashes = 0
        for attempt in rows.attempts_of_task[task.id]:
            charged[attempt.charged] += attempt.charge
            crashes += attempt.state is S.FAILED and not attempt.charged
        if task.consecutive_crashes > crashes:
            text = f"{task.consecutive_crashes} consecutive crashes, {crashes} attempts crashed"
            yield Finding(task, text)
        for budget, counter in (
            ("failure", task.failure_count),
            ("preemption", task.preemption_count),
            ("system", task.system_failure_count),
        ):
            if charged[budget] != counter:
                text = f"{budget} counter {counter}, attempts charged {charged[budget]}"
                yield Finding(task, text)


@invariant(9, "An attempt is charged only by its end.", upheld_by="domain.state.task_changes")
def charged_at_the_end(rows: IntegrityRows) -> Iterator[Finding]:
    for attempt in rows.attempts:
        if attempt.charged and attempt.state not in TERMINAL:
            yield Finding(attempt, f"charged to {attempt.charged} before its end")
        if bool(attempt.charged) != (attempt.charge > 0):
            yield Finding(attempt, f"{attempt.charge} charged to {attempt.charged!r}")


@invariant(
    10,
    "An open task has used no more than its budgets, an ended task at most one charge more.",
    upheld_by="domain.state.transitions",
)
def within_budgets(rows: IntegrityRows) -> Iterator[Finding]:
    for task in rows.tasks:
        group = rows.group_of.get(task.group_id)
        if group is None:
            continue
        for budget, count, limit in (
            ("failure", task.failure_count, group.retries_failure),
            ("preemption", task.preemption_count, group.retries_preemption),
            ("system", task.system_row, group.retries_system),
        ):
            if count > limit + (task.state in TERMINAL):
                yield Finding(task, f"{budget}: {count} used, {limit} retries")


@invariant(
    11,
    "Of the attempts of a task only the last can have SUCCEEDED, and then the task has, too; a task"
    " without an attempt that SUCCEEDED has its result from the cache, or has no attempt.",
    upheld_by="domain.state.transitions (terminal is final)",
)
def success_by_an_attempt(rows: IntegrityRows) -> Iterator[Finding]:
    for task in rows.tasks:
        attempts = rows.attempts_of_task[task.id]
        succeeded = [a.number for a in attempts if a.state is S.SUCCEEDED]
        if succeeded and (task.state is not S.SUCCEEDED or succeeded != [task.attempt_number]):
            yield Finding(task, f"{task.state.name}, attempts {succeeded} SUCCEEDED")
        is_hit = task.id in rows.hits
        if task.state is S.SUCCEEDED and attempts and not succeeded and not is_hit:
            yield Finding(task, "SUCCEEDED without an attempt that did")


@invariant(
    12,
    "The task, group, job and cell of every row exist and agree.",
    upheld_by="commands.jobs.insert, commands.state.apply (these columns have no foreign keys)",
)
def linked(rows: IntegrityRows) -> Iterator[Finding]:
    for task in rows.tasks:
        group = rows.group_of.get(task.group_id)
        if group is None or group.job_id != task.job_id or task.job_id not in rows.job_of:
            yield Finding(task, f"its group {task.group_id} or job {task.job_id} is not its own")
    for attempt in rows.attempts:
        owner = rows.task_of.get(attempt.task_id)
        if owner is None:
            yield Finding(attempt, f"there is no task {attempt.task_id}")
        elif (owner.group_id, owner.job_id) != (attempt.group_id, attempt.job_id):
            yield Finding(attempt, "group or job are not its task's")
        if attempt.cell_id not in rows.known_cells:
            yield Finding(attempt, f"there is no cell {attempt.cell_id}")


@invariant(
    13,
    "`finished_at` of a task or attempt is set exactly if its state is terminal; an attempt is"
    " never PENDING or UNSCHEDULABLE.",
    upheld_by="constraints task_finished_iff_terminal, attempt_finished_iff_terminal",
)
def states_known(rows: IntegrityRows) -> Iterator[Finding]:
    for attempt in rows.attempts:
        if attempt.state not in ATTEMPT_STATES:
            yield Finding(attempt, f"an attempt is never {attempt.state.name}")
    both: list[AttemptRecord | TaskRecord] = [*rows.attempts, *rows.tasks]
    for row in both:
        if (row.finished_at is not None) != (row.state in TERMINAL):
            yield Finding(row, f"{row.state.name}, finished {row.finished_at}")


@invariant(
    14,
    "A task that runs at most once has no attempt after one that had a container.",
    upheld_by="domain.state.transitions (is_final)",
)
def at_most_once_kept(rows: IntegrityRows) -> Iterator[Finding]:
    for task in rows.tasks:
        group = rows.group_of.get(task.group_id)
        if group is None or not group.at_most_once:
            continue
        for earlier in rows.attempts_of_task[task.id][:-1]:
            if earlier.started_at is not None or earlier.container_id:
                text = f"attempt {earlier.number} had a container, and another one followed"
                yield Finding(task, text)


@invariant(
    15,
    "A strictly exclusive attempt is never released by the loss of its cell.",
    upheld_by="domain.convergence.lost_cells",
)
def strict_not_lost(rows: IntegrityRows) -> Iterator[Finding]:
    for attempt in rows.attempts:
        group = rows.group_of.get(attempt.group_id)
        strict = group is not None and group.exclusive == Exclusive.STRICT
        if strict and attempt.release_kind == ReleaseKind.CELL_LOST:
            yield Finding(attempt, "strictly exclusive, but released by a loss")


@invariant(
    16,
    "An attempt on whose end a retry rule decided is FAILED, its group has that rule with the same"
    " reason or none, and after a rule that fails the task is FAILED with this last attempt.",
    upheld_by="domain.state.task_changes",
)
def ruled_by_a_rule(rows: IntegrityRows) -> Iterator[Finding]:
    for attempt in rows.attempts:
        group = rows.group_of.get(attempt.group_id)
        if attempt.retry_rule is None or group is None:
            continue
        number, rules = attempt.retry_rule, read_rules(json.loads(group.retry_rules or "[]"))
        if attempt.state is not S.FAILED or not 0 < number <= len(rules):
            yield Finding(attempt, f"{attempt.state.name} by rule {number} of {len(rules)}")
            continue
        rule, task = rules[number - 1], rows.task_of.get(attempt.task_id)
        if rule.reason is not None and rule.reason != attempt.reason:
            yield Finding(attempt, f"rule {number} is about {rule.reason}, not {attempt.reason}")
        is_ended = task is None or (task.state, task.attempt_uid) == (S.FAILED, attempt.uid)
        if rule.action is RetryAction.FAIL and task is not None and not is_ended:
            yield Finding(attempt, f"rule {number} fails its task, which is {task.state.name}")


@invariant(
    17,
    "A task has its own request and shape, and an attempt its own request, only if a retry rule of"
    " its group increases resources; such a request is nowhere below that of the group.",
    upheld_by="domain.state.growth; commands.state.shapes; statement PLACE_TASKS",
)
def grown_by_a_rule(rows: IntegrityRows) -> Iterator[Finding]:
    own_rows: list[TaskRecord | AttemptRecord] = [*rows.tasks, *rows.attempts]
    for row in own_rows:
        group = rows.group_of.get(row.group_id)
        if group is None:
            continue
        if isinstance(row, TaskRecord):
            has_own_shape = row.shape_id != group.shape_id
            if has_own_shape != (row.resources is not None):
                text = "its own shape" if has_own_shape else "its own request"
                yield Finding(row, f"has only {text}, not both")
        if row.resources is None:
            continue
        rules = read_rules(json.loads(group.retry_rules or "[]"))
        own, least = json.loads(row.resources), json.loads(group.resources)
        if not any(rule.growth for rule in rules):
            yield Finding(row, "has its own request, but no rule increases it")
        elif any(own.get(name, 0) < amount for name, amount in least.items()):
            yield Finding(row, f"requests {own}, below {least} of its group")
