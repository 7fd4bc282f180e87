"""A tick in which every rule has work dies at any statement, or a rule fails: the next finish it.

What is in the database changes only with a commit, so a death anywhere in a transaction leaves what
a death at its end does: the tick dies at the end of each, and at some statements drawn by chance.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from controlplane import clock
from controlplane.commands.convergence.rules import RULES
from controlplane.commands.convergence.runner import Memory, RuleContext
from controlplane.models import Alert, InboxProbe
from controlplane.queries.convergence.due import SOURCES, find_due
from controlplane.queries.integrity.invariants import check_all
from controlplane.queries.policy import load_policy
from controlplane.queries.sql import rows
from controlplane.ticks import convergence
from tests.integration.loop.conftest import Loop
from tests.integration.loop.deaths import at_statement, work_until_death
from tests.integration.loop.everything import Copy, Planting

SEED = random.randrange(10**6)
DRAWN = 5
# Come about only when a rule before has done its work, or are another tick's.
LATER = {"attempts_of_lost_cells", "held_attempts", "deleted_jobs"}
# Half a pool must fall silent: a world of its own (test_losing.py, which dies there, too).
ELSEWHERE = {"held_losses"}
# They come about by the clock alone.
BOUNDED = {
    "unanswered",
    "overruns",
    "unconfirmed_stops",
    "stuck_stops",
    "drained",
    "unplaced",
    "silent_leases",
    "resolving",
    "claimed_callbacks",
    "stale_sessions",
    "cleared_cells",
    "expired_jobs",
    "cache_lookups",
}

# What must be the same however often the tick died: no instants, no ids that were drawn.
FACTS = {
    "jobs": """
        SELECT name, state, ending_as, ending_reason, finished_at IS NULL, settled_at IS NULL,
               deleted_at IS NULL, is_requeuing, waits_for_jobs FROM controlplane_job
        """,
    "tasks": """
        SELECT id, state, attempt_open, attempt_number, failure_count, preemption_count,
               system_failure_count, system_row, refusal_row, consecutive_crashes,
               not_before IS NULL, cache_status, cache_blocked, cache_key
        FROM controlplane_task
        """,
    "attempts": """
        SELECT uid, state, charged, charge, stop_reason, stop_forced_at IS NULL,
               released_at IS NULL, release_kind
        FROM controlplane_attempt
        """,
    "groups": """
        SELECT id, counts, killed_by_dependency, startable_at IS NULL FROM controlplane_taskgroup
        """,
    "history": """
        SELECT job_id, task_id, from_state, to_state, attempt_state, reason
        FROM controlplane_transition
        """,
    "cells": "SELECT name, state, quarantined_for, ordered_state FROM controlplane_cell",
    "alerts": "SELECT kind, subject, cleared_at IS NULL FROM controlplane_alert",
    "audit": "SELECT action, subject FROM controlplane_auditline",
    "schedules": "SELECT name, next_at FROM controlplane_schedule",
    "firings": "SELECT schedule_id, at, outcome FROM controlplane_schedulefiring",
    "bulk": "SELECT state, done, refused, after_job_id FROM controlplane_bulkoperation",
    "callbacks": "SELECT id, state, tries FROM controlplane_callback",
    "claims": "SELECT guid, claim FROM controlplane_oneoff",
    "entries": "SELECT key, evicted_at IS NULL, hits, size_bytes FROM controlplane_cacheentry",
    "deliveries": "SELECT callback_id, number FROM controlplane_delivery",
    "counted": "SELECT id, is_usage_counted FROM controlplane_job",
    "usage": "SELECT owner, job_name, attempts, unmeasured_attempts FROM controlplane_usagetotal",
    "dependencies": "SELECT id, met_at IS NULL, failed_at IS NULL FROM controlplane_jobdependency",
}


class Clock:
    """Stands still until a tick is over. `memory`: of the process that runs the ticks."""

    def __init__(self) -> None:
        self.time = clock.now()
        self.memory = Memory()

    def __call__(self) -> datetime:
        return self.time


@pytest.fixture
def hour(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    Planting(loop).all(monkeypatch)
    stands = Clock()
    clock.use(stands)
    yield stands
    clock.use(None)


@pytest.fixture
def copy(hour: Clock) -> Iterator[Copy]:
    kept = Copy()
    yield kept
    kept.drop()


def facts() -> dict[str, Counter[Any]]:
    return {name: Counter(map(repr, rows(statement))) for name, statement in FACTS.items()}


def differences(
    found: Mapping[str, Counter[Any]], expected: Mapping[str, Counter[Any]]
) -> list[str]:
    """Which facts there are too many of, and too few."""
    return [
        f"{sign} {name}: {row}"
        for name in expected
        for sign, rows_ in (
            ("+", found[name] - expected[name]),
            ("-", expected[name] - found[name]),
        )
        for row in rows_
    ]


def tick(hour: Clock) -> None:
    InboxProbe.objects.update(delivered_until=hour.time)
    convergence.run(memory=hour.memory)
    hour.time += timedelta(seconds=5)


def finish(hour: Clock, began: datetime) -> dict[str, Counter[Any]]:
    """Three more ticks of the clock: exclusive ones wait for 10 s. What there is then."""
    hour.time = began + timedelta(seconds=5)
    for _ in range(3):
        tick(hour)
    assert check_all() == []
    return facts()


def undisturbed(hour: Clock, copy: Copy) -> dict[str, Counter[Any]]:
    began = hour.time
    tick(hour)
    found = finish(hour, began)
    again(hour, copy, began)
    return found


def again(hour: Clock, copy: Copy, began: datetime) -> None:
    copy.restore()
    hour.time = began
    hour.memory = Memory()


def ends_of_transactions(hour: Clock, copy: Copy) -> tuple[list[int], int]:
    """The numbers of the statements behind which something is committed; how many there are."""
    in_block: list[bool] = []
    starts: list[bool] = []

    def note(execute: Any, sql: str, *rest: Any) -> Any:
        in_block.append(connection.in_atomic_block)
        starts.append(sql.startswith("SAVEPOINT"))
        return execute(sql, *rest)

    began = hour.time
    with connection.execute_wrapper(note):
        convergence.run()
    again(hour, copy, began)
    last = len(in_block)
    # Outside of a block each is a transaction. Two blocks may follow each other: a lock of jobs,
    # or a change of a cell, begins one, so that all their ends are among these.
    return [n for n in range(1, last) if not (in_block[n] and in_block[n - 1])], last


def test_every_source_finds_its_rows_once_they_are_due(loop: Loop, hour: Clock) -> None:
    policy = load_policy()
    found = find_due(hour.time, hour.time, policy)
    assert set(SOURCES) - found == LATER | ELSEWHERE
    # Each of these became due in the last 15 minutes, and no other.
    before = hour.time - timedelta(minutes=15)
    assert found - find_due(before, before, policy) == BOUNDED
    context = RuleContext(hour.time, policy, frozenset(found), hour.time)
    for name in ("lost_cells", "expiry", "attempts_of_lost_cells"):
        [rule] = [rule for rule in RULES if rule.name == name]
        assert set(rule.due) & find_due(hour.time, hour.time, policy)
        rule.run(context)
    assert find_due(hour.time, hour.time, policy) >= {"held_attempts", "deleted_jobs"}


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.soak)])
def test_tick_killed_at_any_statement_is_finished_by_the_next(
    loop: Loop, hour: Clock, copy: Copy, stride: int
) -> None:
    """At each fifth end of a transaction, from one that is drawn on; in the long suite at all."""
    began, expected = hour.time, undisturbed(hour, copy)
    planted = {str(item) for item in check_all()}
    ends, count = ends_of_transactions(hour, copy)
    dice = random.Random(SEED)
    drawn = {*ends[dice.randrange(stride) :: stride], *dice.sample(range(count), DRAWN)}
    seen: set[str] = set()
    for at in sorted(drawn):
        again(hour, copy, began)
        death = work_until_death(convergence.run, at_statement(at))
        assert death.before is not None
        left = copy.fingerprint()
        if left in seen:
            continue
        seen.add(left)
        try:
            assert {str(item) for item in check_all()} <= planted
            assert differences(finish(hour, began), expected) == []
        except AssertionError as fault:
            where = f"died before statement {at} of {count}: {death.before} (seed {SEED})"
            raise AssertionError(where) from fault
    assert len(seen) > 2 * len(RULES) // stride


def test_failing_rule_does_not_block_others_and_is_retried(
    loop: Loop, hour: Clock, copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, expected = hour.time, undisturbed(hour, copy)
    for failing in RULES:
        again(hour, copy, began)

        def fail(context: RuleContext) -> Mapping[str, int]:
            raise RuntimeError("a row that makes no sense")

        broken = tuple(replace(r, run=fail) if r is failing else r for r in RULES)
        with monkeypatch.context() as patched:
            patched.setattr(convergence, "RULES", broken)
            convergence.run()
        alerts = Alert.objects.filter(kind="rule_failed")
        has_run = failing.always or bool(alerts)
        assert [alert.subject for alert in alerts] == [f"rule {failing.name}"] * has_run
        found = finish(hour, began)
        assert not alerts.filter(cleared_at=None).exists()
        alerts.delete()
        found["alerts"] = facts()["alerts"]
        assert differences(found, expected) == [], failing.name
