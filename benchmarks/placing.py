"""B5: placement in memory, from a snapshot to columns of effects."""

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from benchmarks.description import Curve, Description, Figures, Options, Points, Target, at_most
from benchmarks.report import Result, median, others_note
from benchmarks.usage import Others
from controlplane.config.collector import relax_collector
from controlplane.domain.placement.cycle.place import place
from controlplane.domain.placement.cycle.plan import PlacementPlan
from controlplane.domain.placement.cycle.plugin_guard import Faults, guard
from controlplane.domain.placement.cycle.prefilter import screen
from controlplane.domain.placement.model.capacity_matrix import CapacityMatrix
from controlplane.domain.placement.model.policy import PoolPolicy
from controlplane.domain.placement.model.snapshot import (
    CellFacts,
    PassFacts,
    PendingRows,
    PoolSnapshot,
    ShapeFacts,
)
from controlplane.domain.placement.plugins.selectors import BUILT_IN as SELECTORS
from controlplane.domain.placement.plugins.sequencers import BUILT_IN as SEQUENCERS
from controlplane.domain.placement.plugins.validators import BUILT_IN as VALIDATORS
from controlplane.domain.state.states import Band, CellState

SEED = 1
TASKS = 32_000
# Armada's cells.
CPU_MILLIS, MEMORY_MIB = 32_000, 256 * 1024
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Case:
    """One workload: `tasks` in so many groups, of so many shapes and owners."""

    title: str
    cells: int = 1_000
    tasks: int = TASKS
    groups: int = 1
    shapes: int = 1
    owners: int = 1
    sequencer: str = "fifo"
    is_full: bool = False


CASES = (
    Case("32,000 tasks, one group"),
    Case("32,000 tasks, 32,000 groups", groups=TASKS),
    Case(
        "10,000 tasks, 10,000 full cells",
        cells=10_000,
        tasks=10_000,
        groups=10_000,
        is_full=True,
    ),
    Case("32,000 tasks, 1,000 shapes", groups=1_000, shapes=1_000),
    Case("32,000 tasks, 10,000 shapes", groups=10_000, shapes=10_000),
    Case("10,000 tasks, 10,000 shapes, full cells", 1_000, 10_000, 10_000, 10_000, is_full=True),
    Case("32,000 tasks of 30 owners by drf", groups=30, shapes=30, owners=30, sequencer="drf"),
)


def _milliseconds(figures: Figures, title: str) -> float:
    return 1000 * median(one["seconds"] for one in figures[title]["runs"])


def _target(title: str, milliseconds: float) -> Target:
    return at_most(milliseconds, title, lambda it: _milliseconds(it, title), "ms")


def _lines(figures: Figures) -> dict[str, Points]:
    titles = {1: CASES[0].title, 1_000: CASES[3].title, 10_000: CASES[4].title}
    points = [(float(n), _milliseconds(figures, title)) for n, title in titles.items()]
    return {"32,000 tasks on 1,000 cells": points}


ABOUT = Description(
    id="B5",
    title="placement in memory",
    claim="A pass over a large cluster takes milliseconds; each shape adds a tenth of one.",
    workload="A snapshot with up to 32,000 waiting tasks and 10,000 cells: in one group or many,"
    " of one shape or many, of one owner or thirty, on empty or full cells.",
    peer="Armada publishes 0.65 s for 32,000 jobs on 1,000 nodes with 16 threads.",
    method="Time of a pass from the snapshot to its effects, with the built-in plugins, guarded"
    " and with the garbage collector set as in a tick, without a database, in one thread.",
    budget_seconds=15,
    targets=(
        _target(CASES[0].title, 20),
        _target(CASES[1].title, 20),
        _target(CASES[2].title, 20),
        _target(CASES[3].title, 300),
        _target(CASES[4].title, 1500),
    ),
    curves=(Curve("shapes", "shapes", "milliseconds", _lines, is_logarithmic=True),),
)


def run(options: Options) -> Result:
    """Measure each case; the tiny size has a hundredth of the tasks."""
    share = options.pick(tiny=100, short=1, full=1)
    result = Result(
        "B5",
        "placement in memory, to columns of effects, one thread",
        ("", "cells", "placed", "ms", "worst ms", "CPU ms"),
    )
    _one_run(_shorten(CASES[0], share))  # imports and first calls pass
    relax_collector()
    for case in CASES:
        others = Others({})
        small = _shorten(case, share)
        found = [_one_run(small) for _ in range(options.runs)]
        seconds = [one["seconds"] for one in found]
        result.figures[case.title] = {"runs": found, "cores_used_by_others": others.cores()}
        result.rows.append(
            (
                case.title,
                f"{small.cells:,}",
                f"{found[0]['placed']:,}",
                f"{1000 * median(seconds):.0f}",
                f"{1000 * max(seconds):.0f}",
                f"{1000 * median(one['cpu'] for one in found):.0f}",
            )
        )
    result.notes.append(others_note(one["cores_used_by_others"] for one in result.figures.values()))
    return result


def _shorten(case: Case, share: int) -> Case:
    counts = {name: getattr(case, name) for name in ("cells", "tasks", "groups", "shapes")}
    return replace(case, **{name: max(count // share, 1) for name, count in counts.items()})


def _one_run(case: Case) -> dict[str, Any]:
    snapshot, waiting = _snapshot(case), _waiting(case)
    began, cpu = time.perf_counter(), time.process_time()
    plan = _decide(snapshot, waiting, case)
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    if case.is_full and plan.count:
        raise RuntimeError(f"{case.title}: {plan.count} were placed on full cells")
    return {"seconds": seconds, "cpu": used, "placed": plan.count}


def _decide(snapshot: PoolSnapshot, waiting: PendingRows, case: Case) -> PlacementPlan:
    """What a tick does between reading and writing."""
    plugins = guard(
        Faults(),
        sequencer=(case.sequencer, SEQUENCERS[case.sequencer]()),
        selector=("dispersed", SELECTORS["dispersed"]()),
        validators={name: build() for name, build in VALIDATORS.items()},
    )
    board = CapacityMatrix(snapshot.cells, snapshot.shapes)
    screened = screen(snapshot, plugins, board)
    facts = PassFacts(waiting if screened.full or screened.heads else PendingRows())
    return place(snapshot, facts, plugins, limit=case.tasks, board=board)


def _snapshot(case: Case) -> PoolSnapshot:
    used = {"cpu_millis": CPU_MILLIS} if case.is_full else {}
    capacity = {"cpu_millis": CPU_MILLIS, "memory_mib": MEMORY_MIB}
    cells = tuple(
        CellFacts(
            cell_id=number + 1,
            name=f"cell-{number:05}",
            state=CellState.READY,
            incarnation="1",
            capacity=capacity,
            used=used,
            task_types=frozenset({"container"}),
        )
        for number in range(case.cells)
    )
    shapes = tuple(
        ShapeFacts(
            shape_id=number + 1,
            band=Band.INTERACTIVE,
            owner_id=1 + number % case.owners,
            project_id=1,
            domain_id=1,
            count=case.tasks // case.shapes,
            resources=resources,
            task_type="container",
        )
        for number, resources in enumerate(_requests(case.shapes))
    )
    return PoolSnapshot(1, "pool", NOW, PoolPolicy(sequencer=case.sequencer), cells, shapes)


def _requests(count: int) -> Iterator[dict[str, int]]:
    """Armada's 1 cpu and 4 GiB, if there is one; else so many different ones, 1 cpu on average."""
    if count == 1:
        yield {"cpu_millis": 1000, "memory_mib": 4096}
        return
    drawn, seen = random.Random(SEED), set[tuple[int, int]]()
    while len(seen) < count:
        one = (drawn.randint(100, 1900), drawn.randint(64, 8192))
        if one not in seen:
            seen.add(one)
            yield {"cpu_millis": one[0], "memory_mib": one[1]}


def _waiting(case: Case) -> PendingRows:
    rows, ends = case.groups, [case.tasks * n // case.groups for n in range(1, case.groups + 1)]
    counts = [end - before for before, end in zip([0, *ends], ends, strict=False)]
    nothing: Sequence[None] = [None] * rows
    return PendingRows(
        shape_ids=[1 + row % case.shapes for row in range(rows)],
        group_ids=list(range(1, rows + 1)),
        job_ids=list(range(1, rows + 1)),
        counts=counts,
        is_first=[False] * rows,
        is_child=[False] * rows,
        since=[NOW] * rows,
        timeout_seconds=nothing,
        avoid_cell_ids=nothing,
        nominated_cell_ids=nothing,
        prefer_cell_ids=nothing,
        reasons=nothing,
        ranks=[0] * rows,
    )
