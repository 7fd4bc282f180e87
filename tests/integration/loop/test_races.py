"""Many at once on the same rows: nothing placed twice, no cell over-committed, no count lost.

Threads with connections of their own play two workers of each tick, two inboxes, submitters and
cancellers; what they leave behind is compared with a recount. How much they do is counted in
operations, not in seconds.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.db import connection

from controlplane import clock
from controlplane.commands.attempts.release import release_attempt
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.contract.states import TaskState as S
from controlplane.inbox.batches import Inbox
from controlplane.models import Attempt, TickState
from controlplane.outbox import transport
from controlplane.queries.locks import lock_jobs
from controlplane.queries.sql import rows
from tests.integration.loop.conftest import FakeCell, Loop, Wire
from tests.integration.loop.crowd import (
    Crowd,
    cascade,
    check,
    heal,
    place,
    report_progress,
    retries_counted,
    stop,
    submit_jobs,
    take_up,
    tick,
)

BASE = int(os.environ["SIMULATION_BASE"])
IN_TEST, IN_SOAK = 50, 1_500

pytestmark = pytest.mark.serial

OVER_COMMITTED = """
    SELECT a.cell_id, sum((g.resources->>'cpu_millis')::int) AS used, c.capacity
    FROM controlplane_attempt a JOIN controlplane_taskgroup g ON g.id = a.group_id
    JOIN controlplane_cell c ON c.id = a.cell_id
    WHERE a.released_at IS NULL GROUP BY a.cell_id, c.capacity
    HAVING sum((g.resources->>'cpu_millis')::int) > (c.capacity->>'cpu_millis')::int
"""
DOUBLED = """
    SELECT task_id FROM controlplane_attempt WHERE released_at IS NULL
    GROUP BY task_id HAVING count(*) > 1
"""


class Nowhere(Wire):
    """A broker that loses everything: Sync repeats all messages from the rows."""

    def push(self, messages: Any) -> None:
        """Lose it."""


def check_limits(dice: object) -> None:
    """At any moment."""
    assert rows(OVER_COMMITTED) == []
    assert rows(DOUBLED) == []


def cells_of(loop: Loop, count: int, cpu: int) -> list[FakeCell]:
    """Cells, each of which has an inbox to itself."""
    cells = []
    for number in range(count):
        own = Loop(loop.owner, loop.wire, Inbox(sync_seconds=0.0))
        cells.append(own.cell(f"cell-{number}", cpu=cpu))
    TickState.objects.get_or_create(name="convergence")
    tick(None)  # type: ignore[arg-type]
    transport.use(Nowhere())
    return cells


def play(loop: Loop, seed: int, rounds: int) -> None:
    """Eight at once on few jobs; then all of it ends well."""
    cells = cells_of(loop, 2, cpu=6000)
    crowd = Crowd(seed)
    crowd.add(place, cascade, tick, stop, take_up, submit_jobs(loop), *map(report_progress, cells))
    for _ in range(4):
        loop.submit(replicas=6, retries={"failure": 1})
    with retries_counted() as retried:
        crowd.run(rounds)
    attempts = Attempt.objects.count()
    print(f"seed {seed}: {8 * rounds} operations, {attempts} attempts, again: {dict(retried)}")
    check(settled=False)
    assert attempts > rounds / 4
    heal(cells)
    check(settled=True)


@pytest.mark.parametrize("seed", range(BASE, BASE + 2))
def test_eight_threads_on_the_same_jobs_lose_no_count(loop: Loop, seed: int) -> None:
    play(loop, seed, IN_TEST)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(BASE + 2, BASE + 12))
def test_eight_threads_on_the_same_jobs_lose_no_count_in_a_long_run(loop: Loop, seed: int) -> None:
    play(loop, seed, IN_SOAK)


@pytest.mark.parametrize("locks", [True, False])
def test_two_workers_of_each_tick_place_no_task_twice(
    loop: Loop, settings: Any, locks: bool
) -> None:
    settings.CELLRUN = django_settings.CELLRUN.model_copy(update={"advisory_locks": locks})
    cells = cells_of(loop, 3, cpu=4000)
    crowd = Crowd(BASE)
    crowd.add(
        place,
        place,
        cascade,
        cascade,
        submit_jobs(loop),
        check_limits,
        *map(report_progress, cells),
    )
    crowd.run(IN_TEST)
    check_limits(None)
    heal(cells)
    check(settled=True)


def test_deadlock_is_retried_and_counted(loop: Loop) -> None:
    jobs = [loop.submit().pk for _ in range(2)]
    met = threading.Barrier(2)
    tries: list[int] = []

    def lock(first: int, second: int) -> None:
        def work() -> None:
            tries.append(first)
            lock_jobs([first])
            with suppress(threading.BrokenBarrierError):
                met.wait()  # both have their first; the one that tries again finds it broken
                met.abort()
            lock_jobs([second])

        try:
            run_in_transaction(work)
        finally:
            connection.close()

    pairs = [tuple(jobs), tuple(reversed(jobs))]
    threads = [threading.Thread(target=lock, args=pair) for pair in pairs]
    with retries_counted() as retried:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    # The transaction that tries again may lock its row before the other one wakes up, once more.
    assert 1 <= retried["40P01"] <= 2
    assert len(tries) == 2 + retried["40P01"]


def test_writes_after_a_lock_wait_are_not_older_than_existing_rows(loop: Loop) -> None:
    cell = loop.cell()
    early = clock.now()
    job = loop.submit(replicas=2)
    loop.place()
    first, second = loop.attempts(job)
    cell.end(first, S.SUCCEEDED, exit_code=0)
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=early)
    check(settled=False)
    release_attempt(uid=second.uid, reason="", actor="me", now=early)
    check(settled=True)


def test_concurrent_last_ends_finish_the_job(loop: Loop) -> None:
    cells = [loop.cell(f"cell-{n}", cpu=1000) for n in range(2)]
    for _ in range(10):
        job = loop.submit(replicas=2)
        loop.place()
        found = {cell: Attempt.objects.get(job=job, cell__name=cell.name) for cell in cells}
        gate = threading.Barrier(2)

        def finish(cell: FakeCell, attempt: Attempt, gate: threading.Barrier = gate) -> None:
            gate.wait()
            cell.end(attempt, S.SUCCEEDED, exit_code=0)
            connection.close()

        work: Callable[..., None] = finish
        threads = [threading.Thread(target=work, args=pair) for pair in found.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert loop.state(job) == "SUCCEEDED"
