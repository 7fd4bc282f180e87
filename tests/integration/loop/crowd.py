"""Threads that change the same rows at once, and checks of what they leave behind."""

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.db import connection, transaction

from controlplane import clock
from controlplane.commands.cells.probes import record_probes
from controlplane.commands.jobs.cancel import cancel_job, cancel_task
from controlplane.commands.jobs.rerun import retry_job
from controlplane.commands.retention.deletion import delete_job
from controlplane.contract.messages.reports import AttemptReport, Heartbeat
from controlplane.contract.states import TaskState as S
from controlplane.contract.wire.queues import INBOX_SHARDS
from controlplane.domain.cells.probes import Probe
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.jobs.submission import JobsRefused, NameTaken
from controlplane.models import Alert, Attempt, Cell, DeadLetter, Job, Task, TickState
from controlplane.queries.integrity.invariants import check_all
from controlplane.queries.sql import rows
from controlplane.ticks import convergence, placement
from tests.integration.loop.conftest import FakeCell, Loop

Work = Callable[[random.Random], object]

WRONG_COUNTS = """
    SELECT g.id FROM controlplane_taskgroup g
    WHERE EXISTS (
        SELECT 1 FROM generate_series(1, 10) AS s(n)
        WHERE g.counts[s.n + 1] <> (SELECT count(*) FROM controlplane_task t
                                    WHERE t.group_id = g.id AND t.state = s.n))
"""
# What a heal takes at most: a generation of dependants each time.
ROUNDS = 200


class Crowd:
    """Threads that each do one thing again and again: all of them at once, round by round."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.errors: list[BaseException] = []
        self._planned: list[Work] = []

    def add(self, *planned: Work) -> None:
        """Plan a thread for each. It gets dice of its own."""
        self._planned += planned

    def run(self, rounds: int) -> None:
        """Do it all. Fails with the first error that escaped a thread."""
        gate = threading.Barrier(len(self._planned))
        threads = [
            threading.Thread(target=self._repeat, args=(number, work, rounds, gate))
            for number, work in enumerate(self._planned)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.errors:
            raise AssertionError(f"seed {self.seed}: {self.errors[0]!r}") from self.errors[0]

    def _repeat(self, number: int, work: Work, rounds: int, gate: threading.Barrier) -> None:
        dice = random.Random(self.seed * 100 + number)
        try:
            for _ in range(rounds):
                gate.wait()
                work(dice)
        except threading.BrokenBarrierError:
            pass  # another one has failed, with its own error
        except BaseException as error:
            self.errors.append(error)
            gate.abort()
        finally:
            connection.close()


class _Retries(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.counts: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        event: Any = record.msg
        if isinstance(event, dict) and event.get("event") == "transaction_retried":
            self.counts[event["sqlstate"]] += 1


@contextmanager
def retries_counted() -> Iterator[Counter[str]]:
    """How many transactions were tried again, by SQLSTATE (40P01: a deadlock)."""
    handler, logger = _Retries(), logging.getLogger("controlplane.commands.state.transactions")
    logger.addHandler(handler)
    try:
        yield handler.counts
    finally:
        logger.removeHandler(handler)


# ---------------------------------------------------------------------------- what they do


def place(dice: random.Random) -> None:
    """A pass of placement."""
    placement.run()


def tick(dice: random.Random) -> None:
    """A tick of the clock, whenever the last one was."""
    now = clock.now()
    rest = {"finished_at": now, "started_at": None, "hold_until": None}
    TickState.objects.filter(name="convergence").update(**rest)
    record_probes([Probe(shard, now) for shard in range(INBOX_SHARDS)], now=now)
    convergence.run()


def cascade(dice: random.Random) -> None:
    """What a wake makes convergence do."""
    convergence.run(woken=True)


def report_progress(cell: FakeCell) -> Work:
    """Return work that moves some attempts of the cell by a step, perhaps reported twice."""

    def report(dice: random.Random) -> None:
        found = list(Attempt.objects.filter(cell__name=cell.name, released_at=None))
        chosen = dice.sample(found, min(len(found), 4))
        reports = [_word(attempt, dice) for attempt in chosen]
        cell.send(Heartbeat(()).body())
        for _ in range(dice.choice([1, 1, 2]) if reports else 0):
            cell.report(*reports)

    return report


def _word(attempt: Attempt, dice: random.Random) -> AttemptReport:
    if attempt.finished_at is not None:
        return AttemptReport(str(attempt.uid), 0, S.KILLED, gone=True)
    state = dice.choice([S.RUNNING, S.SUCCEEDED, S.SUCCEEDED, S.FAILED, S.WORKER_FAILED])
    code = {S.SUCCEEDED: 0, S.FAILED: 1}.get(state)
    gone = state is not S.RUNNING and dice.random() < 0.8
    return AttemptReport(str(attempt.uid), 0, state, exit_code=code, gone=gone)


def stop(dice: random.Random) -> None:
    """Cancel a job, or a task of one."""
    open_tasks = Task.objects.filter(finished_at=None).values_list("id", "job_id")[:40]
    if not open_tasks:
        return
    task_id, job_id = dice.choice(list(open_tasks))
    facts: dict[str, Any] = {"reason": "", "force": dice.random() < 0.3, "actor": "x"}
    with suppress(Conflict, NotFound):  # another thread was faster
        if dice.random() < 0.4:
            cancel_job(job_id=job_id, now=clock.now(), **facts)
        else:
            cancel_task(task_id=task_id, now=clock.now(), **facts)


def take_up(dice: random.Random) -> None:
    """Retry a job that ended, or delete it."""
    ended = Job.objects.visible().exclude(finished_at=None).order_by("-id")
    ids = list(ended.values_list("id", flat=True)[:10])
    if not ids:
        return
    job_id = dice.choice(ids)
    with suppress(Conflict, NotFound, JobsRefused):
        if dice.random() < 0.7:
            retry_job(job_id=job_id, guid=None, actor="owner", now=clock.now())
        else:
            delete_job(job_id=job_id, actor="owner", now=clock.now())


def submit_jobs(loop: Loop) -> Work:
    """Return work that submits jobs which depend on, descend from, or replace existing ones."""

    def submit(dice: random.Random) -> None:
        found = Job.objects.visible().order_by("-id")
        ids = list(found.values_list("id", flat=True)[:6])
        body: dict[str, Any] = {
            "name": dice.choice("abc"),
            "replicas": dice.randint(1, 6),
            "retries": {"failure": 1, "preemption": 2},
            "coscheduled": dice.random() < 0.3,
        }
        if dice.random() < 0.5:
            body["min_available"] = 1
        if ids and dice.random() < 0.5:
            until = dice.choice(["started", "finished", "succeeded"])
            named = dice.sample(ids, min(len(ids), 2))
            body["depends_on"] = [{"job": job_id, "until": until} for job_id in named]
        if ids and dice.random() < 0.3:
            body["parent"] = dice.choice(ids)
        if dice.random() < 0.2:
            body["existing_job_policy"] = dice.choice(["replace", "keep", "error"])
        with suppress(JobsRefused, NameTaken, Job.DoesNotExist):
            loop.submit(**body)

    return submit


# ------------------------------------------------------------------------ what they leave


_UNSETTLED = """
    SELECT t.job_id, t.id, t.state, t.attempt_open, t.nominated_cell_id, t.nominated_until,
           t.not_before, s.pool_id, s.pending_reason, g.pending_reason
    FROM controlplane_task t JOIN controlplane_job j ON j.id = t.job_id AND j.settled_at IS NULL
    JOIN controlplane_taskgroup g ON g.id = t.group_id
    JOIN controlplane_shape s ON s.id = t.shape_id
    WHERE t.finished_at IS NULL
"""


def heal(cells: list[FakeCell]) -> None:
    """Everything that holds a place is confirmed gone, until every job is settled."""
    dice = random.Random(0)
    for number in range(ROUNDS):
        # Gangs nominated by several pools may wait for each other until their nominations end.
        if number == ROUNDS // 2:
            Task.objects.exclude(nominated_until=None).update(nominated_until=clock.now())
        for cell in cells:
            held = Attempt.objects.filter(cell__name=cell.name, released_at=None)
            reports = [
                AttemptReport(str(attempt.uid), 0, S.SUCCEEDED, exit_code=0, gone=True)
                for attempt in held
            ]
            cell.send(Heartbeat(()).body())
            if reports:
                cell.report(*reports)
        Task.objects.exclude(not_before=None).update(not_before=clock.now())
        tick(dice)
        place(dice)
        if not Job.objects.filter(settled_at=None).exists():
            return
    left = list(Job.objects.filter(settled_at=None).values_list("id", "state", "ending_as"))
    known = list(Cell.objects.values_list("id", "name", "state", "state_reason"))
    raise AssertionError(
        f"not settled at {clock.now()}: {left}; their tasks: {rows(_UNSETTLED)}; cells: {known}"
    )


def check(*, settled: bool) -> None:
    """Counts are those of a recount, nothing is violated or swept aside."""
    with transaction.atomic():
        assert rows(WRONG_COUNTS) == []
    violations = check_all()
    assert not violations, "; ".join(map(str, violations))
    assert not Alert.objects.filter(kind="job_skipped").exists()
    assert not DeadLetter.objects.exists()
    if settled:
        assert not Attempt.objects.filter(released_at=None).exists()
