"""What one row's fate says of others: avoided cells, quotas by job, kept room, strict pools."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from controlplane.contract.states import TaskState as S
from controlplane.domain.placement.cycle.place import place
from controlplane.domain.placement.model.policy import PoolPolicy
from controlplane.domain.placement.model.snapshot import GangFacts, Nomination
from controlplane.domain.scopes import ScopeKind, ScopeLimits
from controlplane.domain.state.gangs import GangGroupFacts
from controlplane.domain.state.states import Band
from tests.harness.domain.facts import NOW
from tests.unit.domain.placement.pools import cell, gang, pool, quota, row, run

STRICT = PoolPolicy(strict_fifo=True)
IN_TURN = PoolPolicy(selector="round_robin")


def core(number: int, cores: int = 1, **changes: Any) -> Any:
    return cell(number, cpu=cores * 1000, **changes)


def kept(cell_id: int, group: int, count: int = 1, begins: int | None = None) -> Nomination:
    at = None if begins is None else NOW + timedelta(seconds=begins)
    return Nomination(cell_id, group, count, NOW + timedelta(hours=1), at)


def test_who_avoids_the_only_free_cell_holds_up_nobody_who_does_not() -> None:
    full = core(2, used={"cpu_millis": 1000})
    rows = [row(1, avoid_cell_id=1), row(2, cpu=500), row(3)]
    assert run([core(1, 2), full], *rows).placed == {2: 1, 3: 1}


def test_who_prefers_a_cell_goes_there_as_long_as_it_has_room_and_elsewhere_else() -> None:
    cells = [core(1, 9), core(2, 2), core(3, 9)]
    outcome = run(cells, row(1, 3, prefer_cell_id=2), row(2))
    assert outcome.where(1)[2] == 2
    assert outcome.placed == {1: 3, 2: 1}
    gone = run([core(1, 9)], row(1, prefer_cell_id=7))
    assert gone.placed == {1: 1}


def test_a_job_that_runs_goes_on_behind_one_that_may_not_begin() -> None:
    one = quota(
        ScopeKind.USER, 1, ScopeLimits(running_jobs=1), jobs=frozenset({5}), running_tasks=1
    )
    rows = [row(3), row(4, cpu=500, owner_id=2), row(5, 2)]
    outcome = run([core(1, 4)], *rows, quotas=(one,))
    assert outcome.placed == {4: 1, 5: 2}
    assert outcome.reasons[3]["what"] == "running_jobs"


def test_only_what_stands_against_the_next_task_is_told() -> None:
    user = quota(ScopeKind.USER, 1, ScopeLimits(resources={"cpu_millis": 2000}))
    project = quota(ScopeKind.PROJECT, 1, ScopeLimits(running_tasks=1))
    outcome = run([core(1, 9)], row(1, 4), quotas=(user, project))
    assert outcome.placed == {1: 1}
    assert [item["scope"] for item in outcome.reasons[1]["violations"]] == ["project project-1"]
    assert outcome.reasons[1]["text"] == (
        "quota of project project-1: 1 running tasks + 1 requested > 1 allowed"
    )


def test_gangs_take_their_turn_in_round_robin() -> None:
    rows = [row(group, coscheduled=True) for group in (1, 2, 3)]
    gangs = {group: gang((group, 1, 1)) for group in (1, 2, 3)}
    outcome = run([core(n, 9) for n in (1, 2, 3)], *rows, gangs=gangs, policy=IN_TURN)
    assert outcome.per_cell == {1: 1, 2: 1, 3: 1}
    assert outcome.plan.cursor == "cell-003"


def test_round_robin_goes_on_behind_the_cell_that_the_last_pass_ended_with() -> None:
    cells = [core(n, 9) for n in (1, 2, 3)]
    first = run(cells, row(1, 2), policy=IN_TURN)
    assert (first.per_cell, first.plan.cursor) == ({1: 1, 2: 1}, "cell-002")
    policy = PoolPolicy(selector="round_robin", cursor="cell-002")
    assert run(cells, row(1), policy=policy).per_cell == {3: 1}
    gone = PoolPolicy(selector="round_robin", cursor="cell-001b")
    assert run(cells, row(1), policy=gone).per_cell == {2: 1}


def test_what_is_kept_for_a_task_is_no_part_of_what_it_lacks() -> None:
    busy = core(1, 2, used={"cpu_millis": 1500})
    outcome = run([busy], row(1, nominated_cell_id=1), nominations=(kept(1, 1),))
    assert outcome.placed == {}
    assert outcome.reasons[1]["shortfall"] == {"cpu_millis": 500}


def test_kept_room_is_nobody_elses_unless_he_is_more_important_or_gone_in_time() -> None:
    half = core(1, 2, used={"cpu_millis": 1000})
    waits = row(1, cpu=2000, nominated_cell_id=1)
    alone: dict[str, Any] = {"nominations": (kept(1, 1, begins=200),)}
    assert run([half], waits, row(2), **alone).placed == {}
    assert run([half], waits, row(2, timeout_seconds=140.0), **alone).placed == {2: 1}
    assert run([half], waits, row(2, timeout_seconds=141.0), **alone).placed == {}
    assert run([half], waits, row(2, timeout_seconds=1.0), nominations=(kept(1, 1),)).placed == {}
    assert run([half], waits, row(2, band=Band.PRODUCTION), **alone).placed == {2: 1}


def test_quota_that_is_freed_for_who_is_nominated_is_nobody_elses_either() -> None:
    busy = core(1, 2, used={"cpu_millis": 1000})
    waits = row(1, cpu=2000, band=Band.PRODUCTION, nominated_cell_id=1)
    cells, alone = [busy, core(2)], {"nominations": (kept(1, 1),)}
    cpu = quota(ScopeKind.USER, 1, ScopeLimits(resources={"cpu_millis": 2000}))
    tasks = quota(ScopeKind.USER, 1, ScopeLimits(running_tasks=1))
    jobs = quota(ScopeKind.USER, 1, ScopeLimits(running_jobs=1))
    for limited in (cpu, tasks, jobs):
        outcome = run(cells, waits, row(2), quotas=(limited,), **alone)
        assert outcome.placed == {}
        assert outcome.reasons[2]["code"] == "quota_exceeded"
        # It is not kept from himself, nor from who is more important.
        free = run([core(1, 2)], waits, quotas=(limited,), **alone)
        assert free.placed == {1: 1}
        urgent = replace(waits, shape=replace(waits.shape, band=Band.BATCH))
        assert run(cells, urgent, row(2), quotas=(limited,), **alone).placed == {2: 1}


def test_an_evicted_job_begins_anew_behind_whom_it_was_evicted_for() -> None:
    """Else its next tasks would run before its last ones have left, and it would never be gone."""
    busy = core(1, 2, used={"cpu_millis": 1000})
    waits = row(1, cpu=2000, band=Band.PRODUCTION, nominated_cell_id=1)
    cells, again = [busy, core(2)], row(2, 2, cpu=500)
    for limit, others, placed in ((1, (), {}), (2, (7,), {}), (2, (), {2: 2}), (3, (7,), {2: 2})):
        of_jobs = ScopeLimits(running_jobs=limit)
        facts = {"jobs": frozenset({2, *others}), "leaving_jobs": frozenset({2})}
        held = quota(ScopeKind.USER, 1, of_jobs, running_tasks=1, **facts)
        outcome = run(cells, waits, again, quotas=(held,), nominations=(kept(1, 1),))
        assert outcome.placed == placed
        # A job of which something runs goes on, and where nobody is awaited none is in its own way.
        busy_yet = replace(held, leaving_jobs=frozenset())
        assert run(cells, waits, again, quotas=(busy_yet,), nominations=(kept(1, 1),)).placed
        assert run(cells, again, quotas=(held,)).placed == {2: 2}


def test_tokens_that_are_freed_for_who_is_nominated_are_nobody_elses_either() -> None:
    policy = PoolPolicy(tokens={"licence": 1})
    asked = {"cpu_millis": 2000, "licence": 1}
    waits = row(1, resources=asked, band=Band.PRODUCTION, nominated_cell_id=1)
    cells = [core(1, 2, used={"cpu_millis": 1000}), core(2)]
    other = row(2, resources={"cpu_millis": 1000, "licence": 1})
    outcome = run(cells, waits, other, policy=policy, nominations=(kept(1, 1),))
    assert outcome.placed == {}
    assert outcome.reasons[2]["code"] == "insufficient_tokens"


def test_what_is_kept_for_a_gang_stands_against_none_of_its_members() -> None:
    limited = quota(ScopeKind.USER, 1, ScopeLimits(running_tasks=2, running_jobs=1))
    rows = [
        row(1, coscheduled=True, nominated_cell_id=1),
        row(2, coscheduled=True, job=1, nominated_cell_id=2),
    ]
    both = (kept(1, 1), kept(2, 2))
    one = (GangGroupFacts({S.PENDING: 1}, 1), GangGroupFacts({S.PENDING: 1}, 1))
    facts = GangFacts((1, 2), one, 2)
    outcome = run([core(1), core(2)], *rows, gangs={1: facts}, nominations=both, quotas=(limited,))
    assert outcome.placed == {1: 1, 2: 1}


def test_who_is_nominated_takes_his_place_first_and_other_places_in_his_turn() -> None:
    nominated = row(2, 2, nominated_cell_id=1)
    cells = [core(1), core(2, 9)]
    outcome = run(cells, row(1), nominated, nominations=(kept(1, 2, 2),))
    assert outcome.where(2) == {1: 1, 2: 1}
    assert outcome.where(1) == {2: 1}


def test_who_is_nominated_to_a_cell_that_is_gone_goes_where_there_is_room() -> None:
    assert run([core(1)], row(1, nominated_cell_id=7)).where(1) == {1: 1}
    assert run([core(1)], row(1, nominated_cell_id=1, avoid_cell_id=1)).where(1) == {1: 1}


def test_a_nominated_place_that_is_not_free_yet_stops_no_strict_pool() -> None:
    busy = core(1, used={"cpu_millis": 1000})
    rows = [row(1), row(2, nominated_cell_id=1)]
    both: dict[str, Any] = {"nominations": (kept(1, 2),), "policy": STRICT}
    assert run([busy, core(2, 2)], *rows, **both).placed == {1: 1, 2: 1}


def test_a_strict_pool_places_nothing_behind_the_first_that_finds_no_room() -> None:
    rows = [row(1), row(2, 2, cpu=2000), row(3), row(4, coscheduled=True)]
    outcome = run([core(1, 4)], *rows, gangs={4: gang((4, 1, 1))}, policy=STRICT)
    assert outcome.placed == {1: 1, 2: 1}
    assert outcome.reasons[2]["code"] == "insufficient_resources"
    assert {n: outcome.reasons[n]["behind"] for n in (3, 4)} == {3: 2, 4: 2}


def test_a_quota_does_not_stop_a_strict_pool() -> None:
    limited = quota(ScopeKind.USER, 1, ScopeLimits(running_tasks=1))
    rows = [row(1, 2), row(2, owner_id=2)]
    assert run([core(1, 4)], *rows, quotas=(limited,), policy=STRICT).placed == {1: 1, 2: 1}


def test_a_gang_stops_a_strict_pool_only_where_it_finds_no_room() -> None:
    limited = quota(ScopeKind.USER, 1, ScopeLimits(running_tasks=1))
    rows = [row(1, 2, coscheduled=True), row(2, owner_id=2)]
    all_of_it: dict[str, Any] = {"gangs": {1: gang((1, 2, 2))}, "policy": STRICT}
    assert run([core(1, 4)], *rows, quotas=(limited,), **all_of_it).placed == {2: 1}
    outcome = run([core(1, 1)], *rows, **all_of_it)
    assert (outcome.placed, outcome.reasons[2]["behind"]) == ({}, 1)


def test_members_of_a_gang_beyond_its_minimum_use_what_is_kept_for_them() -> None:
    rows = [
        row(1, coscheduled=True, avoid_cell_id=9),
        row(1, coscheduled=True, nominated_cell_id=1),
    ]
    facts = GangFacts((1,), (GangGroupFacts({S.PENDING: 2}, 1),), 1)
    outcome = run([core(1), core(2)], *rows, gangs={1: facts}, nominations=(kept(1, 1),))
    assert outcome.placed == {1: 2}


def test_what_is_kept_for_a_gang_is_kept_on_while_its_members_wait() -> None:
    rows = [
        row(1, coscheduled=True, avoid_cell_id=9),
        row(2, coscheduled=True, job=1, nominated_cell_id=1, cpu=2000),
        row(7),
    ]
    facts = GangFacts(
        (1, 2), (GangGroupFacts({S.PENDING: 1}, 1), GangGroupFacts({S.PENDING: 1}, 0)), 1
    )
    half = core(1, 2, used={"cpu_millis": 1000})
    outcome = run([half, core(2)], *rows, gangs={1: facts}, nominations=(kept(1, 2),))
    assert outcome.placed == {1: 1}


def test_a_gang_avoids_a_cell_as_long_as_all_of_it_fits_elsewhere() -> None:
    """Its groups would fit elsewhere one by one: it is all of them that need the avoided cell."""
    facts = {1: gang((1, 1, 1), (2, 4, 4))}

    def placed(others: Any, cpu: int = 250) -> dict[int, int]:
        rows = [
            row(1, 1, cpu=cpu, coscheduled=True, avoid_cell_id=1),
            row(2, 4, cpu=250, coscheduled=True, job=1, avoid_cell_id=1),
        ]
        return dict(run([core(1, 2), others], *rows, gangs=facts).per_cell)

    assert placed(core(2, 2)) == {2: 5}
    assert placed(core(2, 2, used={"cpu_millis": 1000})) == {}
    assert sum(placed(core(2, 1)).values()) == 5
    assert sum(placed(core(2, 1), cpu=1000).values()) == 5
    # Where it starts containers at once, only so many may start there.
    assert placed(core(2, 2, start_slots=8)) == {2: 5}
    policy = PoolPolicy(max_building_per_cell=4)
    alike = row(1, 5, cpu=250, coscheduled=True, avoid_cell_id=1)
    cells = [core(1, 2), core(2, 2, start_slots=4)]
    outcome = run(cells, alike, gangs={1: gang((1, 5, 5))}, policy=policy)
    assert outcome.placed == {1: 5}


def test_a_pass_that_is_late_keeps_what_it_decided_and_says_that_it_is_not_done() -> None:
    waited = pool([core(1, 9)], row(1), row(2, cpu=500), row(3, cpu=20_000))
    asked = iter([False, True])
    plan = place(
        waited.snapshot, waited.facts, waited.plugins, limit=9, is_late=lambda: next(asked)
    )
    assert plan.placements.group_ids == [1]
    assert (plan.complete, [item.shape_id for item in plan.shapes]) == (False, [])


def test_rows_that_prefer_cells_and_rows_that_do_not_share_what_is_left() -> None:
    cells = [core(1, 2), core(2, 2)]
    rows = [row(1, 2, prefer_cell_id=1), row(2, 2, prefer_cell_id=1), row(3, 2)]
    outcome = run(cells, *rows)
    assert outcome.where(1) == {1: 2}
    assert outcome.where(2) == {2: 2}
    assert outcome.placed == {1: 2, 2: 2}


def test_a_strict_pool_places_a_gang_on_its_reserved_capacity_behind_the_task_that_blocks() -> None:
    """Otherwise the gang waits for the task in front, and that task for the reserved capacity."""
    strict = PoolPolicy(strict_fifo=True, sequencer="lifo")
    rows = [
        row(1, coscheduled=True, job=1, cpu=900, nominated_cell_id=1),
        row(2, coscheduled=True, job=1, cpu=900, nominated_cell_id=2),
        row(3, cpu=50),
        row(4, cpu=250),  # first in the order of a lifo pool, and larger than what is left
    ]
    reserved = (kept(1, 1), kept(2, 2))
    gangs = {1: gang((1, 1, 1), (2, 1, 1))}
    cells = [core(1), core(2)]
    outcome = run(cells, *rows, gangs=gangs, nominations=reserved, policy=strict)
    assert outcome.placed == {1: 1, 2: 1}
    assert outcome.reasons[3]["code"] == "queue_position"

    # One that does not fit on its reserved capacity yet takes nothing of others.
    busy = [core(1), core(2, used={"cpu_millis": 500}), core(3)]
    outcome = run(busy, *rows, gangs=gangs, nominations=reserved, policy=strict)
    assert outcome.placed == {3: 1, 4: 1}


def test_a_gang_with_reserved_capacity_takes_no_more_of_a_strict_pool_before_its_turn() -> None:
    strict = PoolPolicy(strict_fifo=True, sequencer="lifo")
    rows = [
        row(1, coscheduled=True, job=1, nominated_cell_id=1),
        row(1, 1, coscheduled=True, job=1),
        row(3, cpu=1500),
    ]
    gangs = {1: gang((1, 1, 2))}
    cells = [core(1), core(2)]
    outcome = run(cells, *rows, gangs=gangs, nominations=(kept(1, 1),), policy=strict)
    assert outcome.placed == {1: 1}
