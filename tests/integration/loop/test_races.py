"""Many at once on the same rows: nothing placed twice, no cell over-committed, no count lost.

Threads with connections of their own play two workers of each tick, two inboxes, submitters and
cancellers; what they leave behind is compared with a recount.
"""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.db import connection

from controlplane import clock
from controlplane.commands.endings import cancel_job
from controlplane.contract.reports import AttemptReport
from controlplane.contract.states import TaskState as S
from controlplane.domain.errors import CellrunError
from controlplane.models import Attempt, Job
from controlplane.queries.sql import rows
from controlplane.ticks import convergence, placement
from tests.integration.loop.conftest import Hand, Loop

SECONDS = 4.0

pytestmark = pytest.mark.serial

OVER_COMMITTED = """
    SELECT a.cell_id, sum((g.resources->>'cpu_millis')::int) AS used, c.capacity
    FROM controlplane_attempt a JOIN controlplane_taskgroup g ON g.id = a.group_id
    JOIN controlplane_cell c ON c.id = a.cell_id
    WHERE a.released_at IS NULL GROUP BY a.cell_id, c.capacity
    HAVING sum((g.resources->>'cpu_millis')::int) > (c.capacity->>'cpu_millis')::int
"""
WRONG_COUNTS = """
    SELECT g.id FROM controlplane_taskgroup g
    WHERE EXISTS (
        SELECT 1 FROM generate_series(1, 10) AS s(n)
        WHERE g.counts[s.n + 1] <> (SELECT count(*) FROM controlplane_task t
                                    WHERE t.group_id = g.id AND t.state = s.n))
"""
DOUBLED = """
    SELECT task_id FROM controlplane_attempt WHERE released_at IS NULL
    GROUP BY task_id HAVING count(*) > 1
"""


class Crowd:
    """Threads that each repeat one thing until the time is over."""

    def __init__(self) -> None:
        self.deadline = time.monotonic() + SECONDS
        self.errors: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    def repeat(self, work: Callable[[random.Random], object]) -> None:
        rng = random.Random(len(self.threads))

        def run() -> None:
            try:
                while time.monotonic() < self.deadline:
                    work(rng)
            except BaseException as error:
                self.errors.append(error)
            finally:
                connection.close()

        self.threads.append(threading.Thread(target=run))

    def run(self) -> None:
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join()
        assert self.errors == []


def report_something(hand: Hand, lock: threading.Lock) -> Callable[[random.Random], object]:
    """Play the cell: bring some of its attempts on by a step."""

    def report(rng: random.Random) -> None:
        found = Attempt.objects.filter(cell__name=hand.name, released_at=None)
        attempts = list(found.order_by("?")[:5])
        said = []
        for attempt in attempts:
            state = rng.choice([S.RUNNING, S.SUCCEEDED, S.FAILED])
            code = {S.SUCCEEDED: 0, S.FAILED: 1}.get(state)
            gone = state is not S.RUNNING or attempt.finished_at is not None
            state = S.KILLED if attempt.finished_at else state
            said.append(AttemptReport(str(attempt.uid), 0, state, exit_code=code, gone=gone))
        if said:
            with lock:
                hand.report(*said)

    return report


@pytest.mark.parametrize("locks", [True, False])
def test_everybody_at_once(loop: Loop, settings: Any, locks: bool) -> None:
    settings.CELLRUN = replace(django_settings.CELLRUN, advisory_locks=locks)
    hands = [loop.cell(f"cell-{n}", cpu=4000) for n in range(3)]
    crowd, lock = Crowd(), threading.Lock()

    def submit(rng: random.Random) -> None:
        loop.submit(replicas=rng.randint(1, 8), max_task_failures=2, retries={"failure": 1})
        time.sleep(0.01)

    def cancel(rng: random.Random) -> None:
        ids = list(Job.objects.filter(finished_at=None).values_list("id", flat=True)[:20])
        if ids:
            job_id = rng.choice(ids)
            try:
                cancel_job(job_id=job_id, reason="", force=False, actor="x", now=clock.now())
            except CellrunError as error:
                raise AssertionError from error
        time.sleep(0.05)

    def look(rng: random.Random) -> None:
        assert rows(OVER_COMMITTED) == []
        assert rows(DOUBLED) == []
        time.sleep(0.02)

    for _ in range(2):
        crowd.repeat(lambda rng: placement.run())
    crowd.repeat(lambda rng: convergence.run(woken=True))
    crowd.repeat(submit)
    crowd.repeat(cancel)
    for hand in hands:
        crowd.repeat(report_something(hand, lock))
    crowd.repeat(look)
    crowd.run()
    assert rows(OVER_COMMITTED) == []
    assert rows(DOUBLED) == []
    assert rows(WRONG_COUNTS) == []
    assert Attempt.objects.filter(state=S.SUCCEEDED).count() > 0


def test_two_last_finishers_do_not_miss_each_other(loop: Loop) -> None:
    hands = [loop.cell(f"cell-{n}", cpu=1000) for n in range(2)]
    for _ in range(10):
        job = loop.submit(replicas=2)
        loop.place()
        pairs = [(hand, Attempt.objects.get(job=job, cell__name=hand.name)) for hand in hands]
        gate = threading.Barrier(2)

        def finish(hand: Hand, attempt: Attempt, gate: threading.Barrier = gate) -> None:
            gate.wait()
            hand.end(attempt, S.SUCCEEDED, exit_code=0)
            connection.close()

        threads = [threading.Thread(target=finish, args=pair) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert loop.state(job) == "SUCCEEDED"
