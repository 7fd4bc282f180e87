"""B14: a transaction that holds its snapshot, and readers with REPEATABLE READ, under load."""

import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.description import Curve, Description, Figures, Options, Points, at_least
from benchmarks.generator import SETTINGS, Connection, Load, OpenLoop, measure
from benchmarks.report import Result, median, others_note
from benchmarks.stand import Stand, Wanted, standing
from benchmarks.throughput import WARM_UP_TASKS, submit_and_wait
from benchmarks.usage import Others

CELLS = 100
READERS = 4
CLEAN, HELD, READ = "clean", "held snapshot", f"{READERS} readers"
PREFIX = ["log_line_prefix=%a|"]
HOTTEST, KEPT_STATEMENTS, KEPT_CHARACTERS = 5, 30, 400
STATEMENT_CHARACTERS = 60

_DURATION = re.compile(
    r"^cellrun-\w+\|LOG:  duration: ([\d.]+) ms  (?:statement|execute [^:]*): (.*)$"
)
_DEAD = """
SELECT relname, n_dead_tup FROM pg_stat_user_tables
WHERE relname LIKE 'controlplane_%' AND n_dead_tup > 0 ORDER BY 2 DESC LIMIT 5
"""
NO_TIMEOUT = "SET idle_in_transaction_session_timeout = 0"
"""As pg_dump sets it: the stack ends transactions that are idle for a minute."""

_LIVE_ROWS = "SELECT count(*) FROM controlplane_attempt WHERE released_at IS NULL"


def _share(name: str) -> Callable[[Figures], float]:
    def read(figures: Figures) -> float:
        rates = {key: median(one["rate"] for one in figures[key]) for key in (CLEAN, name)}
        return 100 * rates[name] / rates[CLEAN]

    return read


def _lines(figures: Figures) -> Mapping[str, Points]:
    return {name: figures[name][0]["ended_by_second"][:-1] for name in (CLEAN, HELD, READ)}


ABOUT = Description(
    id="B14",
    title="snapshots that are held",
    claim="Long transactions of others do not slow the control plane.",
    workload="1,000 no-op tasks a second for 30 minutes (short size: 15 s) from the generator of"
    " B13, in requests of one job of 25 tasks: alone; while one transaction with a transaction id"
    f" holds its snapshot all the time; and while {READERS} readers with REPEATABLE READ hold"
    " theirs in turns, so that they overlap.",
    peer="Published with a held transaction: awa 75 %, Oban 96 %, PgQue 100 % of the clean rate;"
    " with four readers: pgmq 39 %.",
    method="Each on a stand of its own. The rate is that of ended tasks, without the first and"
    " the last fifth of the time. Dead tuples are PostgreSQL's own count at the end. Durations of"
    " statements are those in PostgreSQL's log during the last tenth of the time; a slowdown is"
    " the ratio of the means of one statement, for the statements that take most of the time"
    " without a held snapshot.",
    budget_seconds=110,
    targets=(
        at_least(95, "rate with a held snapshot", _share(HELD), "% of clean"),
        at_least(98, f"rate with {READERS} readers", _share(READ), "% of clean"),
    ),
    curves=(Curve("rate", "seconds", "ended tasks/s", _lines),),
)


def run(options: Options) -> Result:
    """Offer the load alone, and in both situations."""
    load = options.pick(
        tiny=Load(50, 5, 1, 5), short=Load(1_000, 15, 1, 25), full=Load(1_000, 1_800, 1, 25)
    )
    result = Result(
        "B14",
        f"{load.tasks_per_second:,} tasks/s while snapshots are held, {CELLS} cells",
        ("", "tasks/s", "p50 ms", "p99 ms", "dead tuples", "hottest statements, slowdown"),
    )
    busy: list[float] = []
    for name in (CLEAN, HELD, READ):
        found = result.figures[name] = []
        for _ in range(options.runs):
            wanted = Wanted(cells=CELLS, settings=SETTINGS, database_options=PREFIX)
            with standing(wanted) as stand:
                others = Others(stand.pids)
                found.append(_one_run(stand, load, name))
                busy.append(others.cores())
    for name in (CLEAN, HELD, READ):
        result.rows.append(_row(name, result.figures[name], result.figures[CLEAN]))
        dead = ", ".join(f"{table} {count:,}" for table, count in result.figures[name][0]["dead"])
        result.notes.append(f"Dead tuples, {name}: {dead or 'none'}.")
    result.notes += _slowdowns(result.figures[CLEAN][0], result.figures[HELD][0])
    result.notes.append(others_note(busy))
    result.figures["cores_used_by_others"] = busy
    return result


def _one_run(stand: Stand, load: Load, name: str) -> dict[str, Any]:
    with stand.connect() as connection:
        submit_and_wait(stand, connection, [min(WARM_UP_TASKS, load.tasks)])
        situation = {CLEAN: _nothing, HELD: hold_snapshot, READ: run_readers}[name]
        with situation(stand, load.seconds), _logged(stand, connection, load.seconds) as statements:
            trace = OpenLoop(stand, load).run()
            dead = connection.execute(_DEAD).fetchall()
        figures = measure(connection, load, trace)
    return {
        **figures,
        "rate": steady_rate(figures["ended_by_second"], load.seconds),
        "dead": [[table, count] for table, count in dead],
        "statements": {
            text[:KEPT_CHARACTERS]: sums
            for text, sums in list(statements.items())[:KEPT_STATEMENTS]
        },
    }


def steady_rate(ended_by_second: Sequence[tuple[int, int]], seconds: float) -> float:
    """Return the ends a second, without the first and the last fifth of the time."""
    ended = dict(ended_by_second)
    window = [second for second in range(int(seconds)) if 0.2 <= second / seconds < 0.8]
    return float(sum(ended.get(second, 0) for second in window) / len(window))


@contextmanager
def _nothing(stand: Stand, seconds: float) -> Iterator[None]:
    yield


@contextmanager
def hold_snapshot(stand: Stand, seconds: float) -> Iterator[None]:
    """Hold a snapshot and a transaction id until the end."""
    with stand.connect() as connection:
        connection.execute(NO_TIMEOUT)
        connection.execute("BEGIN")
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT pg_current_xact_id()")
        yield


@contextmanager
def run_readers(stand: Stand, seconds: float) -> Iterator[None]:
    """Run readers that hold their snapshots for a tenth of the time, one after the other began."""
    stop, hold = threading.Event(), max(seconds / 10, 0.5)
    faults: list[BaseException] = []

    def read(number: int) -> None:
        try:
            with stand.connect() as connection:
                connection.execute(NO_TIMEOUT)
                stop.wait(number * hold / READERS)
                while not stop.is_set():
                    with connection.transaction():
                        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                        connection.execute(_LIVE_ROWS)
                        stop.wait(hold)
                        connection.execute(_LIVE_ROWS)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(READERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if faults:
        raise faults[0]


@contextmanager
def _logged(
    stand: Stand, connection: Connection, seconds: float
) -> Iterator[dict[str, list[float]]]:
    """Log durations in the last tenth of the time; fill sums and counts by statement at the end."""
    found: dict[str, list[float]] = {}
    log = stand.plan.home.logs / "postgres.log"
    offset = log.stat().st_size
    stop = threading.Event()

    def switch_on() -> None:
        if not stop.wait(0.9 * seconds):
            with stand.connect() as own:
                _set_logging(own, 0)

    thread = threading.Thread(target=switch_on, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()
        _set_logging(connection, -1)
    found.update(sum_durations(log.read_bytes()[offset:].decode(errors="replace")))


def _set_logging(connection: Connection, milliseconds: int) -> None:
    connection.execute(f"ALTER SYSTEM SET log_min_duration_statement = {milliseconds}")
    connection.execute("SELECT pg_reload_conf()")


def sum_durations(log: str) -> dict[str, list[float]]:
    """Return milliseconds and number by statement, the largest sum first.

    A line of the log that begins with a tab continues the last one.
    """
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    milliseconds, words = 0.0, list[str]()

    def close() -> None:
        if words:
            entry = sums[" ".join(" ".join(words).split())]
            entry[0] += milliseconds
            entry[1] += 1

    for line in log.splitlines():
        if line.startswith("\t"):
            if words:
                words.append(line.strip())
            continue
        close()
        words = []
        if match := _DURATION.match(line):
            milliseconds, words = float(match[1]), [match[2]]
    close()
    return dict(sorted(sums.items(), key=lambda item: -item[1][0]))


def _hottest(clean: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """Return the statements with the largest sums, and their mean milliseconds in both runs."""
    mine, theirs = clean["statements"], other["statements"]
    common = sorted((text for text in mine if text in theirs), key=lambda text: -mine[text][0])
    return [
        (text, mine[text][0] / mine[text][1], theirs[text][0] / theirs[text][1])
        for text in common[:HOTTEST]
    ]


def _slowdowns(clean: Mapping[str, Any], held: Mapping[str, Any]) -> list[str]:
    return [
        f"`{text[:STATEMENT_CHARACTERS]}`: {before:.2f} ms clean, {after:.2f} ms held."
        for text, before, after in _hottest(clean, held)
    ]


def _row(name: str, found: list[dict[str, Any]], clean: list[dict[str, Any]]) -> tuple[str, ...]:
    ratios = [after / before for _, before, after in _hottest(clean[0], found[0]) if before > 0]
    return (
        name,
        f"{median(one['rate'] for one in found):,.0f}",
        f"{median(one['milliseconds']['p50'] for one in found):.1f}",
        f"{median(one['milliseconds']['p99'] for one in found):.1f}",
        f"{sum(count for _, count in found[0]['dead']):,}",
        f"{median(ratios):.2f}" if ratios else "",
    )
