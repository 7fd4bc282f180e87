"""Carrying out what convergence decides, job by job, each page in a transaction of its own."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from itertools import product

from django.db import transaction

from controlplane.commands.batches import for_each_batch, run_in_transaction
from controlplane.commands.dispatch import send_after_commit
from controlplane.commands.effects import (
    apply_changes,
    change_cells,
    clear_alerts,
    raise_alerts,
)
from controlplane.contract.queues import cell_queue
from controlplane.domain.convergence.converge import TaskRule
from controlplane.domain.convergence.endings import decide_hopeless
from controlplane.domain.convergence.lost_cells import HELD, decide_lost, held_alert
from controlplane.domain.convergence.policy import Policy
from controlplane.domain.convergence.stuck_stops import (
    SUSPICIONS,
    decide_cleared,
    decide_failing,
    decide_stuck_stops,
)
from controlplane.domain.effects import Effects, RaiseAlert
from controlplane.domain.jobs import impossible_groups
from controlplane.domain.snapshots import LeaseFacts
from controlplane.outbox import transport, wakes
from controlplane.queries.convergence import (
    Candidate,
    find_cleared_cells,
    find_drained_cells,
    find_failing_cells,
    find_freed_attempts,
    find_held_attempts,
    find_pending_of_groups,
    find_stuck_stops,
)
from controlplane.queries.facts import load_facts_of_tasks
from controlplane.queries.jobs_under_lock import load_groups, lock_jobs
from controlplane.queries.sql import execute


def apply_task_rule(rule: TaskRule, candidates: Sequence[Candidate], *, now: datetime) -> int:
    """Decide about each candidate on facts read under its job's lock; how many tasks changed."""
    by_job: dict[int, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        by_job[candidate.job_id].append(candidate)
    changed = 0

    def work(job_ids: Sequence[int]) -> None:
        nonlocal changed
        jobs = lock_jobs(job_ids)
        seen = {item.task_id: item.uid for job_id in job_ids for item in by_job[job_id]}
        # An operator may have ended the drain since the candidates were found.
        drained = find_drained_cells(now) if rule.is_of_drain else frozenset()
        changes = [
            rule.decide(facts, now=now)
            for facts in load_facts_of_tasks(list(seen))
            if rule.holds(facts, now)
            and (facts.attempt is None or facts.attempt.uid == seen[facts.task_id])
            and (
                not rule.is_of_drain
                or (facts.attempt is not None and facts.attempt.cell_id in drained)
            )
        ]
        applied = apply_changes(changes, jobs=jobs, now=now, actor="convergence")
        changed += applied.changed
        send_after_commit(applied)

    for_each_batch(list(by_job), work, what=rule.name)
    return changed


def lose_cells(leases: Sequence[LeaseFacts], *, now: datetime, policy: Policy) -> list[int]:
    """Declare the cells LOST whose silence is proven; their queues go with their incarnation."""
    lost: list[int] = []

    def work() -> None:
        lost.extend(change_cells(decide_lost(leases, now=now, policy=policy)))
        by_id = {lease.cell_id: lease for lease in leases}
        raise_alerts(
            [
                RaiseAlert("cell_lost", by_id[cell_id].name, f"cell {by_id[cell_id].name} is lost")
                for cell_id in lost
            ],
            now=now,
        )
        # What it did not confirm, or could not do, is of the past: it will have to begin anew.
        for cell_id, kind in product(lost, SUSPICIONS):
            clear_alerts(kind, by_id[cell_id].name, now=now)

    run_in_transaction(work)
    for lease in leases:
        if lease.cell_id in lost:
            transport.drop(cell_queue(lease.name, lease.incarnation))
    return lost


def count_silence(*, now: datetime, silent_since: datetime) -> None:
    """This tick found the cells that were last heard before `silent_since` silent."""
    execute(
        """
        WITH silent AS MATERIALIZED (
            SELECT l.cell_id FROM controlplane_celllease l
            JOIN controlplane_cell c ON c.id = l.cell_id
            WHERE l.last_heard_at <= %s AND c.state <> 'LOST'
            ORDER BY l.cell_id FOR NO KEY UPDATE OF l
        )
        UPDATE controlplane_celllease l SET silent_ticks = l.silent_ticks + 1
        FROM silent WHERE l.cell_id = silent.cell_id
        """,
        [silent_since],
    )


def suspect_cells(*, now: datetime, policy: Policy) -> int:
    """Quarantine the cells that do not confirm stops; how many."""
    return _quarantine(decide_stuck_stops(find_stuck_stops(now, policy)), now=now)


def avoid_failing_cells(*, now: datetime, policy: Policy) -> int:
    """Quarantine the cells on which everything fails; how many."""
    failing = find_failing_cells(now, policy)
    return _quarantine(decide_failing(failing, now=now, policy=policy), now=now)


def _quarantine(effects: Effects, *, now: datetime) -> int:
    moved: list[int] = []

    def work() -> None:
        moved.extend(change_cells(effects.cells))
        raise_alerts(effects.alerts, now=now)

    run_in_transaction(work)
    return len(moved)


def clear_cells(*, now: datetime, policy: Policy) -> int:
    """Trust again the cells whose quarantine is over; how many."""
    cells = {cell.cell_id: cell for cell in find_cleared_cells(now, policy)}
    moved: list[int] = []

    def work() -> None:
        moved.extend(change_cells(decide_cleared(cells.values(), now=now)))
        for cell_id in moved:
            for kind in SUSPICIONS:
                clear_alerts(kind, cells[cell_id].name, now=now)
        if moved:
            transaction.on_commit(wakes.wake_placement, robust=True)

    run_in_transaction(work)
    return len(moved)


def alert_held(*, now: datetime) -> None:
    """Bring attempts before an operator that nobody else but their lost cell can release."""
    raise_alerts([held_alert(uid, task_id) for uid, task_id in find_held_attempts()], now=now)


def clear_held(*, now: datetime) -> None:
    """Attempts that only their cell or an operator could release are released."""
    for subject in find_freed_attempts():
        clear_alerts(HELD, subject, now=now)


def end_hopeless(job_ids: Sequence[int], *, now: datetime, page: int) -> int:
    """Kill the tasks of groups whose dependency can no longer hold; how many."""
    changed = 0

    def work(batch: Sequence[int]) -> None:
        nonlocal changed
        jobs = lock_jobs(batch)
        groups = [
            group.group_id
            for listed in load_groups(batch).values()
            for group in impossible_groups({row.facts.name: row.facts for row in listed})
        ]
        task_ids = find_pending_of_groups(groups, page) if groups else []
        changes = [decide_hopeless(facts, now=now) for facts in load_facts_of_tasks(task_ids)]
        applied = apply_changes(changes, jobs=jobs, now=now, actor="convergence")
        changed += applied.changed
        send_after_commit(applied)

    for_each_batch(list(job_ids), work, what="dependencies")
    return changed


def roll_again(job_ids: Sequence[int], *, now: datetime) -> None:
    """Let jobs follow their tasks once more: settles what nobody settled."""

    def work(batch: Sequence[int]) -> None:
        jobs = lock_jobs(batch)
        send_after_commit(apply_changes([], jobs=jobs, now=now, actor="convergence", again=batch))

    for_each_batch(list(job_ids), work, what="settling")
