"""Generate docs/benchmarks.md, docs/benchmark-results.md and their plots.

Descriptions come from the modules of `benchmarks`, figures from benchmarks/results.
"""

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.description import Description, Verdict
from benchmarks.registry import ALL
from benchmarks.report import RESULTS, judge
from docgen import plots
from docgen.tables import table

PICTURES = "images/benchmarks"

_HEAD = """# Benchmarks

<!-- Written by `make docs` from benchmarks/ and docgen/benchmark_pages.py; do not edit. -->

`make bench` runs all benchmarks within half an hour; `make bench ONLY=B1,CANCEL RUNS=3` runs some
and prints the median of three runs. Each starts its own PostgreSQL (fsync on), its own Redis and
the processes of `make up` with their default settings, on free ports and in a temporary folder,
and removes everything afterwards. Differences to `make up`: there is no supervisor, and the cells
are one fleet process (real cells for B7, B8 and STORE). Peers are installed from pinned
requirements into `.tools`. Only B7 needs a container engine; `ENGINE=none` skips it.

| option | effect |
|---|---|
| `SIZE=full` | the published sizes, three runs each, no limit: hours, of which B14 takes most |
| `SIZE=tiny` | proves in minutes that all of them work; the figures mean nothing |
| `BUDGET=60` | seconds for each, instead of those in the table; 0: no limit |
| `RESULTS=folder` | where figures are stored; by default in `benchmarks/results` |

Tables, targets and a summary are printed; `<id>.json` in the folder of the results has every
run's figures with machine, versions and commit. A benchmark that fails or exceeds its budget is
reported as FAILED with the reason, the others run, and the exit code is 1. What one leaves of its
budget is added to that of the next one. `make docs` makes this page and the
[results](benchmark-results.md) from the descriptions in `benchmarks/` and from
`benchmarks/results/`; a test fails if they differ. Publish results of a clean working tree and a
machine without other load.

No test asserts a duration. Compare ratios of one run on one machine; other programs on the
machine change even the ratios (by a fifth on the reference machine).

`make compare BASE=main~1 ONLY=B1,B6` reports what a change made slower. It checks out both
commits beside the working tree and runs them in turns (`ROUNDS`, at least 6; `CHANGE`, by default
`HEAD`), with the packages installed now. Each round gives a ratio for each figure that has a
target or a name with a unit or rate. A figure is
`slower` if the interval of the median ratio, that of the sign test with at least 95 % confidence,
excludes 1 and the difference is at least 2 %. The exit code is then 1. One of 30 unchanged
figures can be reported by chance: repeat with more rounds.

"""

_TAIL = """

`tests/e2e/test_resolving_race.py`, `tests/e2e/test_fleet_killed.py` and
`tests/e2e/test_open_loop.py` (the generator of B13) are tests on the same stand.

`make plans` finds the hottest statements with a million ended tasks, and their
[plans](query-plans.md).

For profiling: `py-spy record -p PID --gil` on inbox, placement or the fleet, and PostgreSQL's
`log_min_duration_statement` (`benchmarks.stand.Wanted.database_options`).

## A new benchmark

A module in `benchmarks/` with `ABOUT`, a `Description` (`benchmarks/description.py`) of claim,
workload, peer, method, targets and curves, and `run`, which returns a `Result`
(`benchmarks/report.py`); its name in `MODULES` of `benchmarks/registry.py`. `Options.pick` gives
each size. The budgets of all may not exceed half an hour. Targets and curves read the stored
figures.

## The fleet

`python -m workers.fleet` is one process with many cells. Each has its own key, incarnation, order
queue, lease, heartbeats, journal entries and events for Flower. They share an event loop, a
journal file with one fsync per round, one connection for outgoing messages, and one Celery
worker, and use the memory driver, which simulates attempts.

| setting | default | expects |
|---|---|---|
| `CELLRUN_FLEET_SIZE` | must be set | number of cells, 1 to 2000 |
| `CELLRUN_FLEET_PREFIX` | `fleet-` | prefix of their names: `fleet-000`, `fleet-001`, … |
| `CELLRUN_FLEET_KEYS` | must be set | a folder with a key file for each cell, named like it |

All other settings are those of a [cell](settings.md), the same for all. `CELLRUN_CELL_HOME`
(`.cellrun/fleet`) is shared; `CELLRUN_CELL_NAME` and `CELLRUN_CELL_KEY_FILE` are not read.
`manage.py enroll_cells FOLDER NAME…` enrolls cells and writes their keys:

```sh
manage.py enroll_cells keys $(seq -f 'fleet-%03g' 0 99)
CELLRUN_FLEET_SIZE=100 CELLRUN_FLEET_KEYS=keys CELERY_BROKER_URL=… CELLRUN_CONTROL_URL=… \\
    CELLRUN_INSTALLATION=… CELLRUN_CELL_CAPACITY=cpu=16,memory=64Gi,disk=400Gi,gpu=0 \\
    python -m workers.fleet
```
"""

_RESULTS_HEAD = """# Benchmark results

<!-- Written by `make docs` from benchmarks/ and benchmarks/results/; do not edit. -->

[Benchmarks](benchmarks.md) describes how to run them. Figures are medians of the runs. "Target"
is the design goal; a figure is "not measured" if no result is stored, or if it is older than the
figure. Each result names its date, commit and the load of other programs at that time.

## Targets

"""

# Results before the targets had a place of their own.
_OLD_BOUND = "at most"
# Steps without a duration.
_EMPTY_NOTE = re.compile(r"step \w+: 0\.0 ms")


def load(key: str, folder: Path = RESULTS) -> dict[str, Any] | None:
    """Return the stored result of a benchmark, or None."""
    path = folder / f"{key}.json"
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def write_page() -> str:
    """Return docs/benchmarks.md."""
    rows = [
        (
            f"[{key}](benchmark-results.md#{_anchor(it.about)})",
            it.about.claim,
            f"{it.about.budget_seconds} s",
        )
        for key, it in ALL.items()
    ]
    return _HEAD + table(("id", "claim", "budget"), rows) + _TAIL


def write_results(folder: Path = RESULTS) -> str:
    """Return docs/benchmark-results.md."""
    rows: list[tuple[str, ...]] = []
    for key, benchmark in ALL.items():
        stored = load(key, folder)
        link = f"[{key}](#{_anchor(benchmark.about)})"
        found = judge(benchmark.about, stored["figures"] if stored else {})
        rows += [(link, *row) for row in found]
        if not benchmark.about.targets:
            rows.append((link, "no target", "", "", "" if stored else Verdict.NOT_MEASURED))
    head = ("", "figure", "target", "measured", "")
    parts = [_RESULTS_HEAD + table(head, rows)]
    parts += [_section(benchmark.about, load(key, folder)) for key, benchmark in ALL.items()]
    return "\n\n".join(parts) + "\n"


def list_plots(folder: Path = RESULTS) -> Mapping[str, Callable[[], str]]:
    """Return the function that draws each curve whose points are stored, by path."""
    found: dict[str, Callable[[], str]] = {}
    for key, benchmark in ALL.items():
        stored = load(key, folder)
        for curve in benchmark.about.curves:
            lines = curve.lines(stored["figures"]) if stored else {}
            if lines:
                title = f"{key}: {benchmark.about.title}"
                found[_picture(key, curve.name)] = partial(plots.draw, curve, title, lines)
    return found


def _section(about: Description, stored: Mapping[str, Any] | None) -> str:
    parts = [
        f"## {about.id}: {about.title}",
        f"*Claim.* {about.claim}",
        f"*Workload.* {about.workload}",
        f"*Peer.* {about.peer}",
        f"*Method.* {about.method}",
    ]
    if stored is None:
        return "\n\n".join([*parts, "Not measured: no result is stored."])
    parts.append(_table_of(stored))
    notes = [note for note in stored["notes"] if not _EMPTY_NOTE.fullmatch(note)]
    parts.append("\n".join(f"* {note}" for note in [*notes, _origin(stored)]))
    for curve in about.curves:
        if curve.lines(stored["figures"]):
            text = f"{curve.y} over {curve.x}, {about.id}"
            parts.append(f"![{text}]({_picture(about.id, curve.name)})")
    return "\n\n".join(parts)


def _table_of(stored: Mapping[str, Any]) -> str:
    columns = stored["columns"]
    kept = [n for n, name in enumerate(columns) if not name.startswith(_OLD_BOUND)]
    rows = [[row[n] for n in kept] for row in stored["rows"] if row[0] != _OLD_BOUND]
    return table([columns[n] for n in kept], rows)


def _origin(stored: Mapping[str, Any]) -> str:
    machine = stored["machine"]
    commit = machine["commit"].removesuffix("-dirty")
    state = " with uncommitted changes" if machine["commit"].endswith("-dirty") else ""
    where = f"commit {commit}{state}" if commit else "an unknown commit"
    return (
        f"Measured on {stored['at'][:10]} at {where}, {stored.get('size', 'full')} size:"
        f" {stored['title']}; {machine['processor']}, {machine['cores']} cores,"
        f" Python {machine['python']}."
    )


def _picture(key: str, name: str) -> str:
    return f"{PICTURES}/{key}-{name}.svg"


def _anchor(about: Description) -> str:
    heading = f"{about.id}: {about.title}"
    return re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")
