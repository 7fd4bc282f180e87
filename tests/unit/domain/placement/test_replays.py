"""Decisions that were seen once and must come out as they should (docs/placement.md), and the
document that they are kept in.
"""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from controlplane.domain.placement.cycle.plugin_guard import Faults
from controlplane.domain.placement.model.snapshot import EvictableAttempt, ReleasingCapacity
from controlplane.domain.placement.replay import (
    PassRecord,
    UnreadableRecord,
    plan_document,
    read_record,
    replay,
    write_record,
)
from controlplane.domain.scopes import Scope, ScopeKind
from controlplane.domain.state.states import Band
from controlplane.queries.placement.pool_plugins import resolve
from tests.harness.domain.facts import NOW
from tests.unit.domain.placement.pools import cell, pool, row

FOLDER = Path(__file__).parents[3] / "replays"
KEPT = sorted(path for path in FOLDER.glob("*.json") if not path.name.endswith(".plan.json"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_stored_decision_replays_to_its_stored_plan(path: Path) -> None:
    record = read_record(json.loads(path.read_text()))
    faults = Faults()
    replayed = replay(record, resolve(record.snapshot.policy, faults), lambda: 0.0)
    wanted = json.loads(path.with_suffix(".plan.json").read_text())
    assert json.loads(json.dumps(plan_document(record, replayed))) == wanted
    assert faults.found == {}


def test_stored_decisions_exist() -> None:
    assert KEPT


def crowded() -> PassRecord:
    """A cell full of less important work, and something more important."""
    found = pool([cell(1, cpu=2000, used={"cpu_millis": 2000})], row(7, band=Band.PRODUCTION))
    scope = Scope(ScopeKind.USER, 3)
    running = EvictableAttempt(
        task_id=11,
        job_id=5,
        group_id=6,
        cell_id=1,
        band=Band.BATCH,
        resources={"cpu_millis": 2000},
        owner_id=3,
        project_id=1,
        domain_id=1,
        began_at=NOW - timedelta(hours=1),
        stop_seconds=10.0,
    )
    return PassRecord(
        found.snapshot,
        found.facts,
        limit=100,
        running=(running,),
        leaving=(ReleasingCapacity(1, {"gpu": 1}),),
        leaving_scopes={scope: {"gpu": 1}},
    )


def test_eviction_is_replayed() -> None:
    record = crowded()
    kept = read_record(json.loads(json.dumps(write_record(record))))
    assert (kept.running, kept.leaving, kept.leaving_scopes) == (
        record.running,
        record.leaving,
        record.leaving_scopes,
    )
    ticks = iter([0.0, 0.25, 1.0, 1.5])
    replayed = replay(kept, resolve(kept.snapshot.policy, Faults()), lambda: next(ticks))
    assert replayed.seconds == {"screen": 0.25, "place": 0.75, "make room": 0.5}
    [eviction] = plan_document(kept, replayed)["evictions"]
    assert eviction == {"group": 7, "cells": ["cell-001"], "counts": [1], "victims": [11]}
    peaceful = replace(kept.snapshot.policy, preemption=False)
    kept = replace(kept, snapshot=replace(kept.snapshot, policy=peaceful))
    replayed = replay(kept, resolve(peaceful, Faults()), lambda: 0.0)
    assert plan_document(kept, replayed)["evictions"] == []


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {"version": 1},
        {"version": 2},
        {"version": 2, "snapshot": 7, "facts": {}, "limit": 1},
        {"version": 2, "snapshot": {"pool": 1}, "facts": {}, "limit": 1},
    ],
)
def test_malformed_record_is_refused(document: Any) -> None:
    with pytest.raises(UnreadableRecord):
        read_record(document)
