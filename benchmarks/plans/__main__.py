"""`python -m benchmarks.plans [--size full]`: find the hottest statements and their plans.

The exit code is 1 if, at the full size, a statement reads all of a big table, sequentially or by an
index, and that is not reviewed.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.copies import Connection, make_old_jobs
from benchmarks.description import Options, Size
from benchmarks.generator import SETTINGS
from benchmarks.pages import SIZES
from benchmarks.plans.load import MixedLoad, run_burst
from benchmarks.plans.parsing import SCAN, WHOLE, count_blocks, read_log
from benchmarks.plans.reviewed import find_review
from benchmarks.plans.summary import ID, LoadPhase, summarise
from benchmarks.report import RESULTS, Result, make_console, others_note, write
from benchmarks.stand import Stand, Wanted, standing
from benchmarks.usage import Others

CELLS = 100
BURST_TASKS = 100_000
LOAD_SECONDS = 90.0
_LOG = (
    "compute_query_id=on",
    "logging_collector=on",
    "log_destination=jsonlog",
    "log_filename=statements.log",
    "log_rotation_age=0",
    "log_rotation_size=0",
)
# The log is written by a process of its own.
_LOG_DELAY_SECONDS = 2.0
# Copies have larger ids than the job that was copied. What follows is newer than they are.
_COPIED = ("job", "taskgroup", "task", "transition")
_CONTINUE = """
SELECT setval(pg_get_serial_sequence('controlplane_{0}', 'id'), max(id)) FROM controlplane_{0}
"""
_SAMPLED = """
UPDATE controlplane_walk SET after = found.last || ':' || found.last
FROM (SELECT max(id) AS last FROM controlplane_transition) found WHERE name = 'samples'
"""
_TABLES = """
SELECT relname, greatest(reltuples, 0)::bigint FROM pg_class
WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
"""


@dataclass(slots=True)
class Recording:
    """The log and the records of plans of a stand, from one load to the next."""

    stand: Stand
    connection: Connection
    folder: Path
    phases: dict[str, LoadPhase] = field(default_factory=dict)

    @contextmanager
    def record(self, name: str, *, vacuums: bool) -> Iterator[None]:
        """Record the load of the block as a phase; without autovacuum unless `vacuums`."""
        database = self.stand.plan.database
        assert database is not None
        log = database.data / "log" / "statements.json"
        rows = {table: int(count) for table, count in self.connection.execute(_TABLES)}
        self._set(autovacuum="on" if vacuums else "off", log_min_duration_statement="0")
        place, began, timer = log.stat().st_size, time.time(), time.perf_counter()
        yield
        seconds = time.perf_counter() - timer
        self._set(log_min_duration_statement="-1")
        time.sleep(_LOG_DELAY_SECONDS)
        with log.open() as file:
            file.seek(place)
            statements = read_log(file)
        samples = [one for one in self._read_samples() if one["at"] >= began]
        plans: dict[int, Mapping[str, Any]] = {}
        for one in sorted(samples, key=lambda it: count_blocks(it["plan"])):
            plans[one["query_id"]] = one
        self.phases[name] = LoadPhase(statements, plans, samples, rows, seconds)

    def _set(self, **parameters: str) -> None:
        for name, value in parameters.items():
            self.connection.execute(f"ALTER SYSTEM SET {name} = {value}")
        self.connection.execute("SELECT pg_reload_conf()")

    def _read_samples(self) -> Iterator[dict[str, Any]]:
        for path in self.folder.glob("*.jsonl"):
            for line in path.read_text().splitlines():
                yield json.loads(line)


@contextmanager
def recording() -> Iterator[Recording]:
    """Start a stand whose control plane records plans."""
    with tempfile.TemporaryDirectory(prefix="cellrun-plans-") as folder:
        environment = {
            "DJANGO_SETTINGS_MODULE": "benchmarks.plans.recorded_settings",
            "PLANS_FOLDER": folder,
        }
        wanted = Wanted(
            cells=CELLS, settings=SETTINGS, environment=environment, database_options=_LOG
        )
        with standing(wanted) as stand, stand.connect() as connection:
            yield Recording(stand, connection, Path(folder))


def run(options: Options) -> Result:
    """Record a mixed load and a burst with ended tasks, and a burst in an empty database."""
    tiny, short = ((2, 100), (200, 1)), tuple((count // 10, size) for count, size in SIZES)
    sizes = options.pick(tiny=tiny, short=short, full=SIZES)
    seconds = options.pick(tiny=10.0, short=LOAD_SECONDS, full=LOAD_SECONDS)
    burst = options.pick(tiny=1_000, short=BURST_TASKS // 10, full=BURST_TASKS)
    with recording() as old:
        others = Others(old.stand.pids)
        make_old_jobs(old.stand, old.connection, sizes)
        _continue_behind_copies(old.connection)
        load = MixedLoad(old.stand, seconds)
        with old.record("mixed", vacuums=True):
            load.run()
        with old.record("burst", vacuums=False):
            run_burst(old.stand, old.connection, burst)
        busy = others.cores()
    with recording() as new, new.record("new", vacuums=False):
        run_burst(new.stand, new.connection, burst)
    tasks = sum(count * size for count, size in sizes)
    result = Result(ID, f"{tasks:,} ended tasks", ("", "share", "calls", "mean ms", "rows"))
    phases = {**old.phases, **new.phases}
    result.figures = {
        "tasks": tasks,
        "burst_tasks": burst,
        "load_seconds": seconds,
        "requests": load.requests,
        **summarise(phases),
        "cores_used_by_others": busy,
    }
    for one in result.figures["statements"]:
        row = (f"{one['share']:.1f} %", f"{one['calls']:,}", f"{one['mean_ms']:.2f}")
        result.rows.append((one["text"][:60], *row, f"{one['rows']:g}"))
    result.notes.append(others_note([busy]))
    return result


def _continue_behind_copies(connection: Connection) -> None:
    """Let new rows have larger ids than the copies, which samples of pools do not count."""
    for table in _COPIED:
        connection.execute(_CONTINUE.format(table))
    connection.execute(_SAMPLED)


def main() -> int:
    """Record, store the result, and print the hottest statements and the findings."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plans", description=__doc__)
    parser.add_argument("--size", choices=[*map(str, Size)], default="full")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the figures")
    chosen = parser.parse_args()
    size = Size(chosen.size)
    result = run(Options(1, size))
    path = write(result, size, chosen.results)
    console = make_console()
    findings = result.figures["findings"]
    for one in findings:
        mark = "" if find_review(one) else ", not reviewed"
        console.print(f"{one['phase']}: {one['kind']}: {one['part']}{mark}", highlight=False)
        console.print(f"  {one['text'][:200]}", highlight=False, markup=False)
    console.print(f"figures: {path}")
    if size is not Size.FULL:  # small tables are scanned with good reason
        return 0
    return int(any(one["kind"] in (SCAN, WHOLE) and not find_review(one) for one in findings))


if __name__ == "__main__":
    sys.exit(main())
