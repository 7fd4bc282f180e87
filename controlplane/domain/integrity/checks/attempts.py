"""Invariants of tasks and their attempts: ownership, charges, order."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from controlplane.contract.states import TaskState as S
from controlplane.domain.integrity.rows import Finding, IntegrityRows, TaskRecord
from controlplane.domain.state.states import (
    ACTIVE,
    ATTEMPT_STATES,
    TERMINAL,
    Exclusive,
    ReleaseKind,
    RetryBudget,
)


def one_unreleased(records: IntegrityRows) -> Iterator[Finding]:
    """INV-1."""
    for task_id, attempts in records.attempts_of_task.items():
        held = [attempt for attempt in attempts if attempt.released_at is None]
        if len(held) > 1:
            yield f"task {task_id}", f"{len(held)} attempts of it are not released"


def open_iff_unreleased(records: IntegrityRows) -> Iterator[Finding]:
    """INV-2."""
    for task in records.tasks:
        held = [a.uid for a in records.attempts_of_task.get(task.id, ()) if a.released_at is None]
        if task.attempt_open != bool(held):
            yield _name(task), f"attempt_open is {task.attempt_open}, unreleased: {len(held)}"
        elif held and task.attempt_uid not in held:
            yield _name(task), f"its present attempt is {task.attempt_uid}, not {held[0]}"


def active_together(records: IntegrityRows) -> Iterator[Finding]:
    """INV-3."""
    for task in records.tasks:
        active = [a for a in records.attempts_of_task.get(task.id, ()) if a.state in ACTIVE]
        if task.state in ACTIVE:
            if [(a.uid, a.state, a.released_at) for a in active] != [
                (task.attempt_uid, task.state, None)
            ]:
                yield _name(task), f"{task.state.name}, but its attempts are not"
        elif active:
            yield _name(task), f"{task.state.name}, but attempt {active[0].uid} is active"


def released_in_order(records: IntegrityRows) -> Iterator[Finding]:
    """INV-4."""
    kinds = {kind.value for kind in ReleaseKind}
    for attempt in records.attempts:
        if attempt.released_at is None:
            if attempt.release_kind:
                yield f"attempt {attempt.uid}", "has a release kind but is not released"
        elif attempt.release_kind not in kinds or attempt.state not in TERMINAL:
            text = f"released ({attempt.release_kind or 'no release kind'}) in {attempt.state.name}"
            yield f"attempt {attempt.uid}", text


def instants_in_order(records: IntegrityRows) -> Iterator[Finding]:
    """INV-5."""
    for attempt in records.attempts:
        instants = [
            attempt.created_at,
            attempt.started_at,
            attempt.finished_at,
            attempt.released_at,
        ]
        known = [instant for instant in instants if instant is not None]
        if known != sorted(known):
            yield f"attempt {attempt.uid}", "its instants are not in order"


def one_after_the_other(records: IntegrityRows) -> Iterator[Finding]:
    """INV-6."""
    for task_id, attempts in records.attempts_of_task.items():
        for earlier, later in pairwise(attempts):
            if earlier.released_at is None or later.created_at < earlier.released_at:
                text = f"attempt {later.number} began before {earlier.number} was released"
                yield f"task {task_id}", text


def numbered(records: IntegrityRows) -> Iterator[Finding]:
    """INV-7."""
    for task in records.tasks:
        attempts = records.attempts_of_task.get(task.id, [])
        if [a.number for a in attempts] != list(range(1, task.attempt_number + 1)):
            text = f"{len(attempts)} attempts, numbered up to {task.attempt_number}"
            yield _name(task), text
        elif task.attempt_uid != (attempts[-1].uid if attempts else None):
            yield _name(task), "its present attempt is not its last one"


def counters_rederive(records: IntegrityRows) -> Iterator[Finding]:
    """INV-8."""
    for task in records.tasks:
        charged: Counter[str] = Counter()
        for attempt in records.attempts_of_task.get(task.id, ()):
            charged[attempt.charged] += attempt.charge
        counters = {
            RetryBudget.FAILURE: task.failure_count,
            RetryBudget.PREEMPTION: task.preemption_count,
            RetryBudget.SYSTEM: task.system_failure_count,
        }
        crashes = sum(
            attempt.state is S.FAILED and not attempt.charged
            for attempt in records.attempts_of_task.get(task.id, ())
        )
        if task.consecutive_crashes > crashes:
            text = f"{task.consecutive_crashes} consecutive crashes, {crashes} attempts crashed"
            yield _name(task), text
        for budget, counter in counters.items():
            if charged[budget.value] != counter:
                text = f"{budget} counter {counter}, attempts charged {charged[budget.value]}"
                yield _name(task), text


def charged_at_the_end(records: IntegrityRows) -> Iterator[Finding]:
    """INV-9."""
    for attempt in records.attempts:
        if attempt.charged and attempt.state not in TERMINAL:
            yield f"attempt {attempt.uid}", f"charged to {attempt.charged} before its end"
        if bool(attempt.charged) != (attempt.charge > 0):
            yield f"attempt {attempt.uid}", f"{attempt.charge} charged to {attempt.charged!r}"


def within_budgets(records: IntegrityRows) -> Iterator[Finding]:
    """INV-10."""
    for task in records.tasks:
        group = records.group_of.get(task.group_id)
        if group is None:
            continue
        surplus = 1 if task.state in TERMINAL else 0
        used = (
            ("failure", task.failure_count, group.retries_failure),
            ("preemption", task.preemption_count, group.retries_preemption),
            ("system", task.system_row, group.retries_system),
        )
        for budget, count, limit in used:
            if count > limit + surplus:
                yield _name(task), f"{budget}: {count} used, {limit} retries"


def success_by_an_attempt(records: IntegrityRows) -> Iterator[Finding]:
    """INV-11."""
    for task in records.tasks:
        attempts = records.attempts_of_task.get(task.id, [])
        succeeded = [a.number for a in attempts if a.state is S.SUCCEEDED]
        if succeeded and (task.state is not S.SUCCEEDED or succeeded != [task.attempt_number]):
            yield _name(task), f"{task.state.name}, attempts {succeeded} SUCCEEDED"
        if task.state is S.SUCCEEDED and attempts and not succeeded:
            yield _name(task), "SUCCEEDED without an attempt that did"


def at_most_once_kept(records: IntegrityRows) -> Iterator[Finding]:
    """INV-14."""
    for task_id, attempts in records.attempts_of_task.items():
        task = records.task_of.get(task_id)
        group = records.group_of.get(task.group_id) if task else None
        if group is None or not group.at_most_once:
            continue
        for earlier in attempts[:-1]:
            if earlier.started_at is not None or earlier.container_id:
                text = f"attempt {earlier.number} had a container, and another one followed"
                yield f"task {task_id}", text


def strict_not_lost(records: IntegrityRows) -> Iterator[Finding]:
    """INV-15."""
    for attempt in records.attempts:
        group = records.group_of.get(attempt.group_id)
        strict = group is not None and group.exclusive == Exclusive.STRICT
        if strict and attempt.release_kind == ReleaseKind.CELL_LOST:
            yield f"attempt {attempt.uid}", "strictly exclusive, but released by a loss"


def linked(records: IntegrityRows) -> Iterator[Finding]:
    """INV-12."""
    for task in records.tasks:
        group = records.group_of.get(task.group_id)
        if group is None or group.job_id != task.job_id or task.job_id not in records.job_of:
            yield _name(task), f"its group {task.group_id} or job {task.job_id} is not its own"
    for attempt in records.attempts:
        owner = records.task_of.get(attempt.task_id)
        if owner is None:
            yield f"attempt {attempt.uid}", f"there is no task {attempt.task_id}"
        elif (owner.group_id, owner.job_id) != (attempt.group_id, attempt.job_id):
            yield f"attempt {attempt.uid}", "group or job are not its task's"
        if attempt.cell_id not in records.known_cells:
            yield f"attempt {attempt.uid}", f"there is no cell {attempt.cell_id}"


def states_known(records: IntegrityRows) -> Iterator[Finding]:
    """INV-13."""
    for attempt in records.attempts:
        if attempt.state not in ATTEMPT_STATES:
            yield f"attempt {attempt.uid}", f"an attempt is never {attempt.state.name}"
        if (attempt.finished_at is not None) != (attempt.state in TERMINAL):
            yield f"attempt {attempt.uid}", f"{attempt.state.name}, finished {attempt.finished_at}"
    for task in records.tasks:
        if (task.finished_at is not None) != (task.state in TERMINAL):
            yield _name(task), f"{task.state.name}, finished {task.finished_at}"


def _name(task: TaskRecord) -> str:
    return f"task {task.id}"
