"""B10: the cost of an idle system, in statements and CPU."""

import re
import time
from collections import Counter
from typing import Any

import psycopg

from benchmarks.description import Description, Figures, Options, at_most
from benchmarks.killed_fleet import wait_until_judging
from benchmarks.report import Result, median, others_note
from benchmarks.stand import CONTROL, FLEET, Stand, Wanted, standing
from benchmarks.usage import Others, cpu_seconds, spent

CELLS = 100
MINUTE = 60.0
# What the start left to be done is done.
REST_SECONDS = 10.0
FRAMES = ("BEGIN", "COMMIT", "ROLLBACK")

# As of `%a|`: the application's name, then its statement.
_LOGGED = re.compile(r"^cellrun-(\w+)\|LOG:  (?:statement|execute [^:]*):\s*(\w*)")

Connection = psycopg.Connection[tuple[Any, ...]]


def _statements(figures: Figures) -> float:
    return median(sum(one.get(name, [0])[0] for name in CONTROL) for one in figures["statements"])


def _percent(figures: Figures) -> float:
    return median(sum(one[name] for name in CONTROL) for one in figures["percent"])


ABOUT = Description(
    id="B10",
    title="idle cost",
    claim="A system without work costs next to nothing.",
    workload=f"{CELLS} cells in one fleet process without work, after the waiting time of"
    " convergence.",
    peer="None.",
    method="Statements of one minute are counted in PostgreSQL's log (`log_statement=all`), BEGIN"
    " and COMMIT included; CPU is measured in another minute without logging, at the"
    " short size in half a minute.",
    budget_seconds=150,
    targets=(
        at_most(200, "statements a minute of the control plane", _statements),
        at_most(2, "CPU of the control plane", _percent, "% of a core"),
    ),
)


def run(options: Options) -> Result:
    """Measure CPU, then count statements, in each run."""
    cells = options.pick(tiny=4, short=CELLS, full=CELLS)
    seconds = options.pick(tiny=2.0, short=30.0, full=MINUTE)
    # Half a minute would count what is done each minute twice, or not at all.
    counting_seconds = options.pick(tiny=2.0, short=MINUTE, full=MINUTE)
    result = Result(
        "B10",
        f"one minute of a system that has nothing to do, {cells} cells",
        ("", "statements", "of them BEGIN, COMMIT", "CPU, % of a core"),
    )
    wanted = Wanted(cells=cells, database_options=["log_line_prefix=%a|"])
    counted: list[dict[str, list[int]]] = []
    percents: list[dict[str, float]] = []
    busy: list[float] = []
    with standing(wanted) as stand, stand.connect() as connection:
        wait_until_judging(stand, connection)
        time.sleep(REST_SECONDS)
        for _ in range(options.runs):
            before, others = cpu_seconds(stand.pids), Others(stand.pids)
            time.sleep(seconds)
            used = spent(before, cpu_seconds(stand.pids))
            percents.append({name: 100 * amount / seconds for name, amount in used.items()})
            busy.append(others.cores())
            counted.append(_count_statements(stand, connection, counting_seconds))
    for name in CONTROL:
        result.rows.append(_row(name, [name], counted, percents))
    result.rows.append(_row("the control plane", list(CONTROL), counted, percents))
    for name in ("postgres", "redis", FLEET):
        result.rows.append(_row(name, [name], counted, percents))
    result.notes.append(others_note(busy))
    result.figures = {"statements": counted, "percent": percents, "cores_used_by_others": busy}
    return result


def _row(
    title: str,
    names: list[str],
    counted: list[dict[str, list[int]]],
    percents: list[dict[str, float]],
) -> tuple[str, ...]:
    of_runs = [[sum(one.get(name, [0, 0])[n] for name in names) for n in (0, 1)] for one in counted]
    statements, frames = (median(one[n] for one in of_runs) for n in (0, 1))
    percent = median(sum(one[name] for name in names) for one in percents)
    has_statements = bool(statements)
    return (
        title,
        f"{statements:.0f}" if has_statements else "",
        f"{frames:.0f}" if has_statements else "",
        f"{percent:.1f}",
    )


def _count_statements(stand: Stand, connection: Connection, seconds: float) -> dict[str, list[int]]:
    """Return by process the statements of a minute, and how many of them frame others."""
    log = stand.plan.home.logs / "postgres.log"
    _set_logging(connection, "all")
    offset = log.stat().st_size
    time.sleep(seconds)
    content = log.read_bytes()[offset:].decode(errors="replace")
    _set_logging(connection, "none")
    all_of: Counter[str] = Counter()
    frames: Counter[str] = Counter()
    for line in content.splitlines():
        found = _LOGGED.match(line)
        if found:
            name, word = found.groups()
            all_of[name] += 1
            frames[name] += word.upper() in FRAMES
    factor = MINUTE / seconds
    return {
        name: [round(count * factor), round(frames[name] * factor)]
        for name, count in all_of.items()
    }


def _set_logging(connection: Connection, which: str) -> None:
    connection.execute(f"ALTER SYSTEM SET log_statement = '{which}'")
    connection.execute("SELECT pg_reload_conf()")
