"""B16: parts of the system fail under load and come back."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from benchmarks.description import Curve, Description, Figures, Options, Points, at_most
from benchmarks.generator import (
    GUID_PREFIX,
    SETTINGS,
    Connection,
    Load,
    OpenLoop,
    Trace,
    list_seconds,
)
from benchmarks.report import Result, median, others_note
from benchmarks.stand import CONTROL, FLEET, Stand, Wanted, standing
from benchmarks.throughput import WARM_UP_TASKS, submit_and_wait
from benchmarks.usage import Others

CELLS = 100
RATE = 1_000
# The rate that counts as recovered, over so many seconds.
SHARE, WINDOW_SECONDS = 0.95, 2
DOWN_SECONDS = 2.0
# What supervisor waits for before it starts a process again that has ended.
RESTART_SECONDS = 1.0
POLL_SECONDS = 0.1
NEVER = 1_000.0

_TERMINATE = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
_ENDS = """
SELECT floor(extract(epoch FROM finished_at) - %s)::int, count(*)
FROM controlplane_task WHERE job_id = ANY(%s) AND finished_at IS NOT NULL GROUP BY 1
"""
_SUCCEEDED = "SELECT count(*) FROM controlplane_task WHERE job_id = ANY(%s) AND state = 4"
_TWICE = """
SELECT count(*) FROM (
    SELECT task_id FROM controlplane_transition
    WHERE job_id = ANY(%s) AND to_state = 4 AND task_id IS NOT NULL
    GROUP BY task_id HAVING count(*) > 1
) repeated
"""
_JOBS = "SELECT count(*) FROM controlplane_job WHERE guid LIKE %s"


def _slowest(figures: Figures) -> float:
    return max(float(event["recovered"]) for one in figures["runs"] for event in one["events"])


def _lines(figures: Figures) -> Mapping[str, Points]:
    return {"ended tasks": figures["runs"][0]["ended_by_second"]}


ABOUT = Description(
    id="B16",
    title="recovery",
    claim="Parts may fail at any time: the rate is back soon, and each task ends once.",
    workload=f"{RATE:,} no-op tasks a second from the generator of B13, in requests of one job of"
    f" 25 tasks, on {CELLS} cells. PostgreSQL is stopped and started; all its backends are"
    " terminated; all its connections are taken; each process (control plane, fleet, Redis) is"
    " killed with SIGKILL in turn. A part is away for 2 s. The short size has four of these"
    " failures.",
    peer="Of the queues in hardbyte's tests only awa, PgQue and River recover from all failures.",
    method="Jobs have guids, and requests without an answer are repeated. A part is back when its"
    " start begins. Recovered is the first second from then on in which 95 % of the rate ends,"
    " and also on average with the next one. A process that ends with another one is started"
    " after 1 s, as supervisor does. Lost are tasks that were accepted and did not succeed; twice"
    " are those with two successes, or two jobs of one guid.",
    budget_seconds=90,
    targets=(
        at_most(10, "seconds until the rate is back, slowest part", _slowest, "s"),
        at_most(0, "lost tasks", lambda it: max(one["lost"] for one in it["runs"])),
        at_most(0, "tasks that ended twice", lambda it: max(one["twice"] for one in it["runs"])),
    ),
    curves=(Curve("rate", "seconds", "ended tasks/s", _lines),),
)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure by name; `fail` returns the function that brings the part back."""

    name: str
    fail: Callable[[Stand], Callable[[], object]]


def run(options: Options) -> Result:
    """Offer the load, and let one part after the other fail."""
    failures = options.pick(tiny=FAILURES[:1] + KILLS[:1], short=SHORT, full=FAILURES + KILLS)
    gap = options.pick(tiny=8.0, short=12.0, full=30.0)
    rate = options.pick(tiny=20, short=RATE, full=RATE)
    each = options.pick(tiny=5, short=25, full=25)
    load = Load(rate, gap * (len(failures) + 1), jobs_each=1, tasks_each=each)
    result = Result(
        "B16",
        f"failures at {rate:,} tasks/s, {CELLS} cells",
        ("", "rate is back after s", "worst"),
    )
    found: list[dict[str, Any]] = []
    busy: list[float] = []
    for _ in range(options.runs):
        with standing(Wanted(cells=CELLS, settings=SETTINGS)) as stand:
            others = Others(stand.pids)
            found.append(_one_run(stand, load, failures, gap))
            busy.append(others.cores())
    for number, failure in enumerate(failures):
        seconds = [one["events"][number]["recovered"] for one in found]
        result.rows.append((failure.name, f"{median(seconds):.0f}", f"{max(seconds):.0f}"))
    for word in ("lost", "twice"):
        result.rows.append((f"tasks {word}", "", f"{max(one[word] for one in found)}"))
    result.notes.append(others_note(busy))
    result.figures = {"runs": found, "cores_used_by_others": busy}
    return result


def _one_run(stand: Stand, load: Load, failures: Sequence[Failure], gap: float) -> dict[str, Any]:
    with stand.connect() as connection:
        submit_and_wait(stand, connection, [min(WARM_UP_TASKS, load.tasks)])
    loop = OpenLoop(stand, load, is_patient=True)
    faults: list[BaseException] = []

    def offer() -> None:
        try:
            loop.run()
        except BaseException as fault:
            faults.append(fault)

    thread = threading.Thread(target=offer, daemon=True)
    thread.start()
    began = time.monotonic()
    back = []
    for number, failure in enumerate(failures, 1):
        _supervise(stand, thread, began + number * gap)
        bring_back = failure.fail(stand)
        time.sleep(DOWN_SECONDS)
        back.append(time.time())
        bring_back()
    _supervise(stand, thread, None)
    if faults:
        raise faults[0]
    with stand.connect() as connection:
        return _measure(connection, load, loop.trace, failures, back, gap)


def _supervise(stand: Stand, thread: threading.Thread, until: float | None) -> None:
    """Start ended processes again until an instant, or the end of the load."""
    while thread.is_alive() and (until is None or time.monotonic() < until):
        if ended := stand.list_ended():
            time.sleep(RESTART_SECONDS)
            for name in ended:
                stand.start_again(name)
        time.sleep(POLL_SECONDS)


def _measure(
    connection: Connection,
    load: Load,
    trace: Trace,
    failures: Sequence[Failure],
    back: Sequence[float],
    gap: float,
) -> dict[str, Any]:
    jobs = list(trace.due_at)
    ended: dict[int, int] = dict(connection.execute(_ENDS, [trace.began_at, jobs]).fetchall())
    ((succeeded,),) = connection.execute(_SUCCEEDED, [jobs])
    ((repeated,),) = connection.execute(_TWICE, [jobs])
    ((stored,),) = connection.execute(_JOBS, [f"{GUID_PREFIX}%"])
    events = [
        {
            "name": failure.name,
            "back": at - trace.began_at,
            "recovered": find_recovery(ended, at - trace.began_at, load.tasks_per_second, gap),
        }
        for failure, at in zip(failures, back, strict=True)
    ]
    return {
        "events": events,
        "ended_by_second": list_seconds(ended)[:-1],
        "lost": load.tasks - succeeded,
        "twice": repeated + (stored - len(jobs)) * load.tasks_each,
        "repeated_requests": trace.refused,
        "backlog": trace.backlog,
        "drain_seconds": trace.drain_seconds,
    }


def find_recovery(ended: Mapping[int, int], back: float, rate: float, most: float) -> float:
    """Return the seconds from `back` until the rate ends again; NEVER if not within `most`."""
    first = int(back)
    for second in range(first, int(back + most)):
        count = sum(ended.get(second + n, 0) for n in range(WINDOW_SECONDS))
        # A burst after a second without ends is no steady rate.
        is_back = ended.get(second, 0) >= SHARE * rate
        if is_back and count >= SHARE * rate * WINDOW_SECONDS:
            return float(second - first)
    return NEVER


def _stop_postgres(stand: Stand) -> Callable[[], object]:
    stand.stop("postgres")
    return lambda: stand.start_again("postgres")


def _terminate_backends(stand: Stand) -> Callable[[], object]:
    with stand.connect() as connection:
        connection.execute(_TERMINATE)
    return lambda: None


def _take_connections(stand: Stand) -> Callable[[], object]:
    """Open connections until PostgreSQL refuses one, after those of the system were ended."""
    taken: list[Connection] = []
    try:
        while True:
            taken.append(stand.connect())
    except psycopg.OperationalError:
        if taken:
            taken[0].execute(
                f"{_TERMINATE} AND NOT pid = ANY(%s)", [[it.info.backend_pid for it in taken]]
            )

    def release() -> None:
        for connection in taken:
            connection.close()

    return release


def _kill(name: str) -> Failure:
    def fail(stand: Stand) -> Callable[[], object]:
        stand.kill(name)
        return lambda: stand.start_again(name)

    return Failure(f"{name} is killed", fail)


FAILURES = (
    Failure("PostgreSQL is restarted", _stop_postgres),
    Failure("all backends are terminated", _terminate_backends),
    Failure("all connections are taken", _take_connections),
)
KILLS = tuple(_kill(name) for name in (*CONTROL, FLEET, "redis"))
SHORT = (*FAILURES[:2], _kill("inbox"), _kill(FLEET))
