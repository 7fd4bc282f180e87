"""Generate docs/query-plans.md from the stored result of `make plans`."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.plans.parsing import (
    BIG_TABLE_ROWS,
    MOST_DISCARDED_ROWS,
    MOST_SCANNED_ROWS,
    MOST_SORTED_ROWS,
    SCAN,
    WHOLE,
)
from benchmarks.plans.reviewed import find_review
from benchmarks.plans.summary import ID, TOP
from benchmarks.report import RESULTS
from docgen.benchmark_pages import load
from docgen.tables import table

WIDTH = 110
_TABLES = ("task", "attempt", "transition", "job", "taskgroup")

_HEAD = f"""# Query plans

<!-- Written by `make docs` from benchmarks/results/{ID}.json; do not edit. -->

The hottest statements of the control plane with many ended tasks in the tables, each with the
plan that PostgreSQL used during the load. `make plans` measures them again; `SIZE=tiny` proves in
two minutes that it works, `RESULTS=folder` stores the figures elsewhere. The exit code is 1 if, at
the full size, a statement reads all of a big table, sequentially or by an index, and that is not
reviewed.

## Method

* A [stand](benchmarks.md) with 100 cells. Ended jobs are copied into the tables, with groups,
  tasks, attempts and history, as for PAGES. The mixed load then lasts 90 s: jobs of one task and
  of 1,000 tasks that succeed, fail, are retried, cancelled and rerun, or wait for other jobs;
  tasks that run on, and tasks that no cell can take; heartbeats, reports and all ticks; each list
  of the API, in two threads; pages of the admin.
* A *burst* of new tasks in ten jobs follows in the same tables, and one in an empty database
  (*new*). In both autovacuum is off, so that the planner has no statistics of the new rows.
* Calls and times are from the log of durations of PostgreSQL, by its identifier of each query.
  Waits for locks are included. Statements that differ in constants only are one.
* Plans are those of `EXPLAIN (ANALYZE, BUFFERS)`, which each process of the control plane runs
  at the place of the statement, with its parameters, in a savepoint that it rolls back: for the
  first five calls of each statement and then every 2 s. Of several plans the one with the most
  blocks is shown; that of a prepared statement, with `$1` in the place of a value, is the one for
  any values. After the rollback the driver prepares its statements again, so times contain more
  planning than without the recorder. `rows` are averages of the loops, `removed` the rows that
  filters of all loops discarded, `hit` and `read` blocks of 8 KiB in and outside the buffers of
  PostgreSQL.

Each recorded plan, not only those below, is checked for

* a **{SCAN}** of a table with more than {BIG_TABLE_ROWS:,} rows, or of more than
  {MOST_SCANNED_ROWS:,} rows of any table: an error;
* a **{WHOLE}**: a node that reads more than half of such a table by an index without a condition,
  which replaces a sequential scan because Cellrun's connections avoid those: an error unless
  reviewed;
* **discarded rows**: a node that discards more than {MOST_DISCARDED_ROWS:,} rows and nine of ten
  that it reads;
* a **large sort** of more than {MOST_SORTED_ROWS:,} rows, or on disk.

"""


_REPAIRED_HEAD = """## Repaired

Plans that earlier runs found, and what replaced them. Other programs ran at the same time, so
compare the plans first and the times with care.

"""
_REPAIRS = (
    (
        "samples of pools, for 200,000 changes",
        "scans of `task` and `transition`, 10 to 12 s",
        "tasks and earlier changes by their keys, 3 to 4 s (only after an outage are so many due)",
    ),
    (
        "totals of usage",
        "scans of `taskgroup` and of `attempt` for a page of jobs",
        "groups, tasks and attempts of each job by their indexes",
    ),
    (
        "orphans, a page of 20,000 rows",
        "a scan of `job`, 290 ms",
        "the parent of each row by its key, 110 ms",
    ),
    (
        "search by the beginning of a name",
        "a scan of `job` if many names match",
        "the index of names",
    ),
    (
        "counts of the lists of the admin",
        "scans of `task`, `attempt` and `job`, ended by a limit",
        "their keys, ended by the same limit",
    ),
    (
        "the snapshot of placement, without statistics",
        "a scan of `task` in each pass, to find that no task is nominated",
        "the index of nominated tasks",
    ),
    (
        "`GET /tasks?state=pending` with few pending tasks",
        "all tasks, the newest first",
        "the indexes of waiting tasks and of unreleased attempts",
    ),
    (
        "batches of a thousand tasks",
        "scans of tables of 100,000 rows",
        "[`random_page_cost`](operations.md#in-psql) is 1.1: by key in big tables",
    ),
)
_REPAIRED_TAIL = """

An index of pending tasks by id was tried for the list of pending tasks and removed: PostgreSQL
preferred it to the index of placement, and a pass read all pending tasks for each shape."""


def write(folder: Path = RESULTS) -> str:
    """Return docs/query-plans.md."""
    stored = load(ID, folder)
    if stored is None:
        return _HEAD + "Not measured: no result is stored.\n"
    figures = stored["figures"]
    chosen = figures["statements"]
    parts = [
        _HEAD + "## Result",
        _introduce(stored),
        _table_of(chosen),
        "## Findings",
        _describe_findings(figures["findings"]),
        _REPAIRED_HEAD + table(("statement", "before", "now"), _REPAIRS) + _REPAIRED_TAIL,
        "## Plans",
    ]
    parts += [_section(number, one) for number, one in enumerate(chosen, 1)]
    return "\n\n".join(parts) + "\n"


def _introduce(stored: Mapping[str, Any]) -> str:
    figures, machine = stored["figures"], stored["machine"]
    rows = ", ".join(
        f"{figures['table_rows'].get(f'controlplane_{name}', 0):,} of `{name}`" for name in _TABLES
    )
    burst = figures["burst_tasks"]
    sentences = (
        f"Measured on {stored['at'][:10]} at commit {machine['commit'].removesuffix('-dirty')},",
        f"{stored['size']} size: {figures['tasks']:,} ended tasks, bursts of {burst:,}.",
        f"Rows before the load: {rows}.",
        f"The control plane ran {figures['calls']:,} statements of {figures['distinct']} kinds in",
        f"{figures['load_seconds']:g} s of mixed load with {figures['requests']:,} reads.",
        f"Begins and ends of transactions took {figures['utility_share']:.1f} % of the time of",
        f"PostgreSQL. Meanwhile other programs used {figures['cores_used_by_others']:.1f} of",
        f"{machine['cores']} cores. The {TOP} statements with the most time come first, then the",
        "most frequent ones that are not among them.",
    )
    return textwrap.fill(" ".join(sentences), 100)


def _table_of(chosen: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for number, one in enumerate(chosen, 1):
        ranks = [
            name
            for name, holds in (("time", one["is_hottest"]), ("calls", one["is_frequent"]))
            if holds
        ]
        rows.append(
            (
                f"[{number}](#{number}-{_verb(one)})",
                f"`{textwrap.shorten(one['text'], 70, placeholder=' …')}`",
                ", ".join(ranks),
                f"{one['calls']:,}",
                f"{one['share']:.1f} %",
                f"{one['mean_ms']:.2f}",
                f"{one['rows']:,.0f}",
                ", ".join(one["findings"]) or "-",
            )
        )
    head = (
        "",
        "statement",
        "among the top by",
        "calls",
        "share of time",
        "mean ms",
        "rows",
        "marks",
    )
    return table(head, rows)


def _describe_findings(findings: Sequence[Mapping[str, Any]]) -> str:
    scans = sum(one["kind"] == SCAN and one["phase"] != "new" for one in findings)
    noun = "scan" if scans == 1 else "scans"
    first = f"{scans or 'No'} sequential {noun} of a table that was big before the load."
    if not findings:
        return f"{first} No other finding."
    rows = [
        (
            one["phase"],
            one["kind"],
            one["part"],
            f"{one['share']:.1f} %",
            f"{one['plan_ms']:.1f}",
            f"`{textwrap.shorten(one['text'], 60, placeholder=' …')}`",
            find_review(one) or "**not reviewed**",
        )
        for one in findings
    ]
    head = ("load", "finding", "part of the plan", "share of time", "ms", "statement", "review")
    return f"{first}\n\n{table(head, rows)}"


def _section(number: int, one: Mapping[str, Any]) -> str:
    text = "\n".join(textwrap.wrap(one["text"], WIDTH, break_long_words=False))
    parts = [
        f"### {number} {_verb(one)}",
        f"{one['calls']:,} calls, {one['share']:.1f} % of the time, {one['mean_ms']:.2f} ms each.",
        f"```sql\n{text}\n```",
    ]
    if one["plan"]:
        plan = "\n".join(one["plan"])
        times = f"took {one['plan_ms']:.2f} ms, planned in {one['planning_ms']:.2f} ms"
        parts.append(f"Plan of a call that {times}:")
        parts.append(f"```text\n{plan}\n```")
    return "\n\n".join(parts)


def _verb(one: Mapping[str, Any]) -> str:
    return str(one["text"].split()[0]).lower()
