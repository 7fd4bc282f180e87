"""Concurrency keys in a pass: what counts, in which order, and what is not evicted for a key."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from controlplane.domain.constraints import Constraint, Operator
from controlplane.domain.placement.cycle.key_usage import KeyAccounting
from controlplane.domain.placement.model.concurrency import (
    ConcurrencyRule,
    KeyUsage,
    StartRate,
    key_number,
)
from controlplane.domain.placement.model.policy import PoolPolicy
from controlplane.domain.placement.model.snapshot import EvictableAttempt, Nomination
from controlplane.domain.placement.preemption.make_room import make_room, starving
from controlplane.domain.placement.scheduling_key import ShapeKey
from controlplane.domain.state.states import Band
from tests.harness.domain.facts import NOW
from tests.unit.domain.placement.pools import Pool, cell, gang, pool, row, run

KEY = 7


def rule(limit: int | None = None, starts: tuple[int, int] | None = None) -> ConcurrencyRule:
    return ConcurrencyRule(KEY, "k", limit, None if starts is None else StartRate(*starts))


def usage(held: int = 0, **started: int) -> tuple[KeyUsage, ...]:
    return (KeyUsage(KEY, held, {int(name[1:]): count for name, count in started.items()}),)


def test_shapes_without_a_key_keep_the_ids_of_earlier_versions() -> None:
    # Computed by the version before there were keys: rows of waiting tasks have these ids.
    plain = ShapeKey(1, Band.BATCH, 2, 3, {"cpu_millis": 500}, "container")
    assert plain.number() == 4643460727126283486
    constraint = Constraint("zone", Operator.EQ, ("a",), True)
    full = ShapeKey(
        4, Band.PRODUCTION, 5, 6, {"gpu": 1}, "process", (constraint,), ("t",), True, True
    )
    assert full.number() == 3184307202366522622
    keyed = {
        replace(plain, concurrency=item).number()
        for item in (rule(1), rule(2), rule(1, (1, 1)), rule(None, (1, 1)))
    }
    assert len(keyed | {plain.number()}) == 5


def test_keys_of_projects_have_ids_of_their_own() -> None:
    ids = {key_number(project, key) for project in (1, 2, 12) for key in ("1", "2", "21", "k")}
    assert len(ids) == 12
    assert all(0 <= number < 1 << 62 for number in ids)


def test_rule_survives_its_json_form() -> None:
    for item in (rule(3), rule(3, (5, 60)), rule(None, (5, 60))):
        assert ConcurrencyRule.read(item.as_dict()) == item


def test_account_gives_the_smaller_of_limit_and_rate() -> None:
    account = KeyAccounting(usage(2, s60=1))
    assert account.room(None) is None
    assert account.room(rule(5)) == 3
    assert account.room(rule(1)) == 0
    assert account.room(rule(5, (2, 60))) == 1
    assert account.claim(rule(5, (2, 60)), 4) == 1
    # A start counts for every rule about the key.
    assert account.room(rule(5)) == 2
    assert account.room(rule(9, (2, 60))) == 0
    assert account.room(rule(None, (3, 60))) == 1
    account.book(rule(5, (2, 60)), -1)
    assert account.room(rule(5, (2, 60))) == 1


def test_jobs_behind_a_full_key_are_placed_also_in_a_strict_pool() -> None:
    outcome = run(
        [cell(1)],
        row(1, 3, concurrency=rule(1)),
        row(2, 2),
        policy=PoolPolicy(strict_fifo=True),
        key_usage=usage(),
    )
    assert outcome.placed == {1: 1, 2: 2}
    assert outcome.reasons[1] == {
        "code": "concurrency_limit",
        "text": "concurrency key k: 1 task on cells + 1 requested > 1 allowed",
        "key": "k",
        "used": 1,
        "requested": 1,
        "limit": 1,
    }


def test_reason_has_the_limit_and_the_rate_if_both_are_used_up() -> None:
    outcome = run([cell(1)], row(1, concurrency=rule(2, (3, 60))), key_usage=usage(2, s60=3))
    assert outcome.reasons[1]["text"] == (
        "concurrency key k: 2 tasks on cells + 1 requested > 2 allowed; 3 started in the last 60 s"
        " + 1 requested > 3 allowed"
    )


def test_full_key_is_screened_out_without_its_rows() -> None:
    waiting = pool([cell(1)], row(1, concurrency=rule(2)), row(2), key_usage=usage(2))
    screened = waiting.screen()
    [keyed] = [shape.shape_id for shape in waiting.snapshot.shapes if shape.concurrency]
    assert keyed not in screened.full | screened.heads | screened.of_running
    assert [item.shape_id for item in screened.reasons] == [keyed]


def test_gang_waits_until_all_its_minima_fit_into_the_key() -> None:
    terms: dict[str, Any] = {"job": 9, "coscheduled": True, "concurrency": rule(4)}
    rows = [row(1, 2, **terms), row(2, 2, **terms)]
    gangs = {9: gang((1, 2, 2), (2, 2, 2))}
    assert run([cell(1)], *rows, gangs=gangs, key_usage=usage()).placed == {1: 2, 2: 2}
    waits = run([cell(1)], *rows, gangs=gangs, key_usage=usage(1))
    assert waits.placed == {}
    assert waits.reasons[1]["code"] == "waiting_for_gang"
    assert "concurrency key k: 3 tasks on cells + 2 requested > 4" in waits.reasons[1]["text"]


def test_members_beyond_the_minimum_start_as_the_key_admits() -> None:
    terms: dict[str, Any] = {"job": 9, "coscheduled": True, "concurrency": rule(3)}
    found = run([cell(1)], row(1, 5, **terms), gangs={9: gang((1, 2, 5))}, key_usage=usage())
    assert found.placed == {1: 3}


# ------------------------------------------------------------------- evictions, nominations


def full(*rows: Any, **rest: Any) -> tuple[Pool, list[EvictableAttempt]]:
    """A cell that eight BATCH tasks fill."""
    running = [
        EvictableAttempt(
            task_id=number,
            job_id=100 + number,
            group_id=100,
            cell_id=1,
            band=Band.BATCH,
            resources={"cpu_millis": 1000, "memory_mib": 64},
            owner_id=2,
            project_id=2,
            domain_id=1,
            began_at=NOW - timedelta(seconds=60),
            stop_seconds=10.0,
        )
        for number in range(8)
    ]
    used = {"cpu_millis": 8000, "memory_mib": 512}
    return pool([cell(1, used=used)], *rows, **rest), running


def evicted(*rows: Any, **rest: Any) -> int:
    case, running = full(*rows, **rest)
    found = make_room(case.snapshot, case.place(), case.facts.waiting, running, (), {})
    return sum(len(eviction.victims) for eviction in found)


def test_no_more_is_evicted_than_the_key_admits() -> None:
    terms: dict[str, Any] = {"band": Band.PRODUCTION}
    assert evicted(row(1, 5, **terms), key_usage=usage()) == 5
    keyed = row(1, 5, concurrency=rule(3), **terms)
    assert evicted(keyed, key_usage=usage(1)) == 2
    assert evicted(keyed, key_usage=usage(3)) == 0
    # Of two jobs together.
    other = row(2, 5, concurrency=rule(4), **terms)
    assert evicted(keyed, other, key_usage=usage()) == 4


def test_nothing_is_evicted_for_a_gang_that_its_key_does_not_admit() -> None:
    terms = {"band": Band.PRODUCTION, "job": 9, "coscheduled": True, "concurrency": rule(4)}
    gangs = {9: gang((1, 3, 3))}
    assert evicted(row(1, 3, **terms), gangs=gangs, key_usage=usage(1)) == 3
    assert evicted(row(1, 3, **terms), gangs=gangs, key_usage=usage(2)) == 0


def test_no_capacity_is_reserved_for_a_starving_task_that_its_key_does_not_admit() -> None:
    policy = PoolPolicy(starvation_seconds=60.0)
    since = NOW - timedelta(seconds=600)

    def starved(held: int) -> int:
        keyed = row(1, 1, concurrency=rule(2), since=since)
        case, _ = full(keyed, policy=policy, key_usage=usage(held))
        return len(starving(case.snapshot, case.place(), case.facts.waiting))

    assert starved(1) == 1
    assert starved(2) == 0


def test_nominated_task_holds_its_key_against_lower_bands() -> None:
    keyed: dict[str, Any] = {"concurrency": rule(2)}
    nominated = row(1, 1, cpu=8000, band=Band.PRODUCTION, nominated_cell_id=1, **keyed)
    found = run(
        [cell(1, used={"cpu_millis": 1000}), cell(2, cpu=4000)],
        nominated,
        row(2, 3, band=Band.BATCH, **keyed),
        nominations=(Nomination(1, 1, 1, NOW + timedelta(hours=1)),),
        key_usage=usage(),
    )
    assert found.placed == {2: 1}
