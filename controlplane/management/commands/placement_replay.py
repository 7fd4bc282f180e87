"""`manage.py placement_replay FILE`: repeat the decision of a recorded pass and print the plan.

It needs no database: the file has the whole input of the pass, except plugins of other packages,
which must be installed.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.domain.placement.cycle.plugin_guard import Faults
from controlplane.domain.placement.replay import (
    PassRecord,
    ReplayResult,
    UnreadableRecord,
    plan_document,
    read_record,
    replay,
)
from controlplane.queries.placement.pool_plugins import resolve


class Command(BaseCommand):
    """Prints the plan as tables or as JSON."""

    help = "Repeat the decision of a placement pass from a file of placement_snapshot."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the file and `--json`."""
        parser.add_argument("file", type=Path, help="output of placement_snapshot")
        parser.add_argument("--json", action="store_true", help="print the plan as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        """Read the file, repeat the decision and print the plan."""
        try:
            record = read_record(json.loads(options["file"].read_text()))
        except (OSError, UnreadableRecord, json.JSONDecodeError) as error:
            raise CommandError(f"{options['file']}: {error}") from None
        faults = Faults()
        replayed = replay(record, resolve(record.snapshot.policy, faults), time.perf_counter)
        plan = plan_document(record, replayed)
        if options["json"]:
            self.stdout.write(json.dumps(plan, ensure_ascii=False, indent=1))
            return
        for line in _lines(record, replayed, plan):
            self.stdout.write(line)
        for plugin, fault in faults.found.items():
            self.stderr.write(f"{plugin}: {fault}")


def _lines(record: PassRecord, replayed: ReplayResult, plan: Mapping[str, Any]) -> Iterator[str]:
    snapshot, waiting = record.snapshot, record.facts.waiting
    yield (
        f"pool {snapshot.name} at {snapshot.now.isoformat()}: {len(snapshot.cells)} ready cells,"
        f" {len(snapshot.shapes)} shapes, {sum(waiting.counts)} tasks in {len(waiting)} rows"
    )
    placed = sum(item["count"] for item in plan["placements"])
    yield f"\nplaced: {placed} tasks" + (
        "" if plan["complete"] else " (the pass reached its limit)"
    )
    yield from _table(
        ("JOB", "GROUP", "CELL", "TASKS"),
        [(item["job"], item["group"], item["cell"], item["count"]) for item in plan["placements"]],
    )
    yield "\nreasons that changed:"
    yield from _table(
        ("FOR", "CODE", "TEXT"),
        [
            (
                f"shape {item['shape']}" if "shape" in item else f"group {item['group']}",
                *_format_reason(item["reason"]),
            )
            for item in plan["reasons"]
        ],
    )
    yield "\nrejected, so that they end UNSCHEDULABLE:"
    yield from _table(
        ("GROUP", "CODE", "TEXT"),
        [(item["group"], *_format_reason(item["reason"])) for item in plan["rejected"]],
    )
    yield "\nnot placed, but evictions may make room:"
    yield from _table(
        ("GROUP", "TASKS"), [(item["group"], item["count"]) for item in plan["unplaced"]]
    )
    yield "\nevictions:"
    yield from _table(
        ("FOR GROUP", "ON", "TASKS"),
        [
            (item["group"], ", ".join(item["cells"]), ", ".join(map(str, item["victims"])))
            for item in plan["evictions"]
        ],
    )
    spent = ", ".join(f"{step} {1000 * took:.2f} ms" for step, took in replayed.seconds.items())
    yield f"\n{spent}"


def _format_reason(reason: Mapping[str, Any] | None) -> tuple[str, str]:
    return (
        ("-", "no task waits any more")
        if reason is None
        else (
            str(reason["code"]),
            str(reason["text"]),
        )
    )


def _table(head: Sequence[str], found: Sequence[Sequence[object]]) -> Iterator[str]:
    """Yield the lines of a table with aligned columns; "none" without rows."""
    if not found:
        yield "  none"
        return
    lines = [head, *([str(value) for value in line] for line in found)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
    for line in lines:
        padded = (value.ljust(width) for value, width in zip(line, widths, strict=True))
        yield f"  {'  '.join(padded)}".rstrip()
