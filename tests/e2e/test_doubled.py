"""Two beats and two workers of each tick at once: nothing is placed twice, no cell over-committed.

With the advisory locks and without them: the locks only save work.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from cellrun import Session
from tests.e2e.engine import EngineEvents, remove_containers
from tests.e2e.stack import Companion, RunningStack, open_folder, remnants, wait_until
from tests.e2e.work import attempts_of, session_of, shell_job, wait_for_end

pytestmark = [pytest.mark.stack, pytest.mark.engine]

JOBS, TASKS = 4, 8
# Two of them fill a cell's memory, so that every placement is a fight for the last place.
CAPACITY = {"CELLRUN_CELL_CAPACITY": "cpu=1,memory=512Mi,disk=1Gi,gpu=0"}
REQUEST = {"cpu": 0.4, "memory": "100Mi"}
SAMPLE_SECONDS = 0.01

OVERCOMMITTED = """
    SELECT c.name, r.key, sum(r.value::bigint), (c.capacity ->> r.key)::bigint
    FROM controlplane_attempt a
    JOIN controlplane_taskgroup g ON g.id = a.group_id
    JOIN controlplane_cell c ON c.id = a.cell_id
    CROSS JOIN LATERAL jsonb_each_text(g.resources) r
    WHERE a.released_at IS NULL
    GROUP BY c.name, r.key, c.capacity
    HAVING sum(r.value::bigint) > coalesce((c.capacity ->> r.key)::bigint, 0)
"""
FULL = """
    SELECT count(*) FROM (
        SELECT cell_id FROM controlplane_attempt WHERE released_at IS NULL
        GROUP BY cell_id HAVING count(*) >= 2
    ) AS full_cells
"""


@pytest.fixture(scope="module", params=["true", "false"], ids=["locks", "no locks"])
def stack(request: pytest.FixtureRequest) -> Iterator[RunningStack]:
    settings = {**CAPACITY, "CELLRUN_ADVISORY_LOCKS": request.param}
    with open_folder() as folder:
        with RunningStack(folder / "home", **settings) as running:
            yield running
        remove_containers(running.installation)
        assert remnants(running.home) == []


@pytest.fixture
def session(stack: RunningStack) -> Iterator[Session]:
    with session_of(stack) as session:
        yield session


def duplicate_of(stack: RunningStack, name: str) -> Companion:
    """A second process like one of the stack's, under a name of its own."""
    schedule = str(stack.home / "beat" / "schedule")
    command = [
        word.replace(f"{name}@", f"{name}-duplicate@").replace(schedule, f"{schedule}-duplicate")
        for word in stack.command_of(name)
    ]
    return Companion(command, stack.environment_of(name), log_of(stack, name))


def log_of(stack: RunningStack, name: str) -> Path:
    """Where the duplicate of a process writes."""
    return stack.home / "log" / f"{name}-duplicate.log"


def all_work(stack: RunningStack) -> bool:
    """Whether the duplicates have begun to work."""
    beats = any((stack.home / "beat").glob("schedule-duplicate*"))
    return beats and all(
        "ready." in log_of(stack, name).read_text() for name in ("placement", "convergence")
    )


class Sampler:
    """Samples the rows continuously while its block runs."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="sampler")
        self.samples = 0
        self.full = 0
        self.found: list[tuple[object, ...]] = []

    def _sample(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._over.wait(SAMPLE_SECONDS):
                self.found += connection.execute(OVERCOMMITTED).fetchall()
                row = connection.execute(FULL).fetchone()
                self.full += bool(row and row[0])
                self.samples += 1

    @contextmanager
    def looking(self) -> Iterator["Sampler"]:
        """Sample until the block ends."""
        self._thread.start()
        try:
            yield self
        finally:
            self._over.set()
            self._thread.join()


def test_duplicate_ticks_place_nothing_twice_and_overcommit_no_cell(
    stack: RunningStack, session: Session
) -> None:
    sampler = Sampler(stack.environment["DATABASE_URL"])
    with ExitStack() as block:
        events = block.enter_context(EngineEvents(stack.installation))
        for name in ("beat", "placement", "convergence"):
            block.enter_context(duplicate_of(stack, name))
        wait_until(lambda: all_work(stack), seconds=60, what="the duplicates work")
        block.enter_context(sampler.looking())
        specs = [
            shell_job("sleep 0.2", name=f"many-{number}", replicas=TASKS, resources=REQUEST)
            for number in range(JOBS)
        ]
        job_ids = [session.submit(spec)["id"] for spec in specs]
        for job_id in job_ids:
            assert wait_for_end(session, job_id)["state"] == "SUCCEEDED"
        for job_id in job_ids:
            attempts = attempts_of(session, job_id)
            assert {task: len(found) for task, found in attempts.items()} == dict.fromkeys(
                attempts, 1
            )
            assert events.starts_by_task(job_id) == dict.fromkeys(attempts, 1)
    assert sampler.found == []
    assert sampler.full > 10, "the cells were never full: the test shows nothing"
