"""How one row affects others: avoided cells, quotas by job, kept room, strict pools."""

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
from tests.unit.domain.placement.pools import Outcome, cell, gang, pool, quota, row, run

STRICT = PoolPolicy(strict_fifo=True)
IN_TURN = PoolPolicy(selector="round_robin")


def core(number: int, cores: int = 1, **changes: Any) -> Any:
    return cell(number, cpu=cores * 1000, **changes)


def kept(cell_id: int, group: int, count: int = 1, begins: int | None = None) -> Nomination:
    at = None if begins is None else NOW + timedelta(seconds=begins)
    return Nomination(cell_id, group, count, NOW + timedelta(hours=1), at)


def test_row_that_avoids_the_only_free_cell_does_not_block_others() -> None:
    full = core(2, used={"cpu_millis": 1000})
    rows = [row(1, avoid_cell_id=1), row(2, cpu=500), row(3)]
    assert run([core(1, 2), full], *rows).placed == {2: 1, 3: 1}


def test_preferred_cell_is_used_while_it_has_room() -> None:
    cells = [core(1, 9), core(2, 2), core(3, 9)]
    outcome = run(cells, row(1, 3, prefer_cell_id=2), row(2))
    assert outcome.where(1)[2] == 2
    assert outcome.placed == {1: 3, 2: 1}
    gone = run([core(1, 9)], row(1, prefer_cell_id=7))
    assert gone.placed == {1: 1}


def test_running_job_continues_while_a_new_job_exceeds_the_quota() -> None:
    one = quota(
        ScopeKind.USER, 1, ScopeLimits(running_jobs=1), jobs=frozenset({5}), running_tasks=1
    )
    rows = [row(3), row(4, cpu=500, owner_id=2), row(5, 2)]
    outcome = run([core(1, 4)], *rows, quotas=(one,))
    assert outcome.placed == {4: 1, 5: 2}
    assert outcome.reasons[3]["what"] == "running_jobs"


def test_reason_lists_only_violations_of_the_next_task() -> None:
    user = quota(ScopeKind.USER, 1, ScopeLimits(resources={"cpu_millis": 2000}))
    project = quota(ScopeKind.PROJECT, 1, ScopeLimits(running_tasks=1))
    outcome = run([core(1, 9)], row(1, 4), quotas=(user, project))
    assert outcome.placed == {1: 1}
    assert [item["scope"] for item in outcome.reasons[1]["violations"]] == ["project project-1"]
    assert outcome.reasons[1]["text"] == (
        "quota of project project-1: 1 running tasks + 1 requested > 1 allowed"
    )


def test_gangs_are_placed_in_turn_by_round_robin() -> None:
    rows = [row(group, coscheduled=True) for group in (1, 2, 3)]
    gangs = {group: gang((group, 1, 1)) for group in (1, 2, 3)}
    outcome = run([core(n, 9) for n in (1, 2, 3)], *rows, gangs=gangs, policy=IN_TURN)
    assert outcome.per_cell == {1: 1, 2: 1, 3: 1}
    assert outcome.plan.cursor == "cell-003"


def test_round_robin_continues_after_the_last_cell_of_the_previous_pass() -> None:
    cells = [core(n, 9) for n in (1, 2, 3)]
    first = run(cells, row(1, 2), policy=IN_TURN)
    assert (first.per_cell, first.plan.cursor) == ({1: 1, 2: 1}, "cell-002")
    policy = PoolPolicy(selector="round_robin", cursor="cell-002")
    assert run(cells, row(1), policy=policy).per_cell == {3: 1}
    gone = PoolPolicy(selector="round_robin", cursor="cell-001b")
    assert run(cells, row(1), policy=gone).per_cell == {2: 1}


def test_reserved_capacity_of_a_task_does_not_add_to_its_shortfall() -> None:
    busy = core(1, 2, used={"cpu_millis": 1500})
    outcome = run([busy], row(1, nominated_cell_id=1), nominations=(kept(1, 1),))
    assert outcome.placed == {}
    assert outcome.reasons[1]["shortfall"] == {"cpu_millis": 500}


def test_reserved_capacity_is_open_only_to_higher_bands_and_backfill() -> None:
    half = core(1, 2, used={"cpu_millis": 1000})
    waits = row(1, cpu=2000, nominated_cell_id=1)
    alone: dict[str, Any] = {"nominations": (kept(1, 1, begins=200),)}
    assert run([half], waits, row(2), **alone).placed == {}
    assert run([half], waits, row(2, timeout_seconds=140.0), **alone).placed == {2: 1}
    assert run([half], waits, row(2, timeout_seconds=141.0), **alone).placed == {}
    assert run([half], waits, row(2, timeout_seconds=1.0), nominations=(kept(1, 1),)).placed == {}
    assert run([half], waits, row(2, band=Band.PRODUCTION), **alone).placed == {2: 1}


def test_quota_freed_for_a_nominated_task_is_kept_for_it() -> None:
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
        # It is not kept from its own task, nor from a more important one.
        free = run([core(1, 2)], waits, quotas=(limited,), **alone)
        assert free.placed == {1: 1}
        urgent = replace(waits, shape=replace(waits.shape, band=Band.BATCH))
        assert run(cells, urgent, row(2), quotas=(limited,), **alone).placed == {2: 1}


def test_evicted_job_restarts_only_after_the_nominated_task() -> None:
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
        # A job with a running task goes on, and without a nominated task no job blocks itself.
        busy_yet = replace(held, leaving_jobs=frozenset())
        assert run(cells, waits, again, quotas=(busy_yet,), nominations=(kept(1, 1),)).placed
        assert run(cells, again, quotas=(held,)).placed == {2: 2}


def test_tokens_freed_for_a_nominated_task_are_kept_for_it() -> None:
    policy = PoolPolicy(tokens={"licence": 1})
    resources = {"cpu_millis": 2000, "licence": 1}
    waits = row(1, resources=resources, band=Band.PRODUCTION, nominated_cell_id=1)
    cells = [core(1, 2, used={"cpu_millis": 1000}), core(2)]
    other = row(2, resources={"cpu_millis": 1000, "licence": 1})
    outcome = run(cells, waits, other, policy=policy, nominations=(kept(1, 1),))
    assert outcome.placed == {}
    assert outcome.reasons[2]["code"] == "insufficient_tokens"


def test_nominations_of_a_gang_do_not_block_its_own_members() -> None:
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


def test_nominations_of_one_job_do_not_admit_each_other_after_a_limit_was_lowered() -> None:
    """Two tasks are nominated on full cells; a third cell has room, but the job may not start."""
    none = quota(ScopeKind.DOMAIN, 1, ScopeLimits(running_jobs=0))
    full = [core(number, used={"cpu_millis": 1000}) for number in (1, 2)]
    rows = [row(1, nominated_cell_id=1), row(1, nominated_cell_id=2)]
    both = (kept(1, 1), kept(2, 1))
    outcome = run([*full, core(3)], *rows, quotas=(none,), nominations=both)
    assert outcome.placed == {}
    assert outcome.reasons[1]["what"] == "running_jobs"
    # One of its tasks runs: the others may follow.
    running = replace(none, jobs=frozenset({1}))
    outcome = run([*full, core(3)], *rows, quotas=(running,), nominations=both)
    assert outcome.placed == {1: 1}


def test_further_gang_members_do_not_use_the_quota_of_a_nominated_member() -> None:
    rows = [
        row(1, coscheduled=True),
        row(2, coscheduled=True, job=1, nominated_cell_id=1),
    ]
    facts = GangFacts((1, 2), (GangGroupFacts({S.PENDING: 1}, 0),) * 2, 0)
    facts_and_nominations: dict[str, Any] = {"gangs": {1: facts}, "nominations": (kept(1, 2),)}
    limited = quota(ScopeKind.USER, 1, ScopeLimits(running_tasks=1))
    cells = [core(1), core(2)]
    outcome = run(cells, *rows, quotas=(limited,), **facts_and_nominations)
    assert outcome.placed == {2: 1}
    assert outcome.reasons[1]["what"] == "running_tasks"
    resources = {"cpu_millis": 1000, "licence": 1}
    licensed = [
        row(1, coscheduled=True, resources=resources),
        row(2, coscheduled=True, job=1, resources=resources, nominated_cell_id=1),
    ]
    policy = PoolPolicy(tokens={"licence": 1})
    outcome = run(cells, *licensed, policy=policy, **facts_and_nominations)
    assert outcome.placed == {2: 1}


def test_nominated_task_takes_its_cell_first_and_other_cells_in_turn() -> None:
    nominated = row(2, 2, nominated_cell_id=1)
    cells = [core(1), core(2, 9)]
    outcome = run(cells, row(1), nominated, nominations=(kept(1, 2, 2),))
    assert outcome.where(2) == {1: 1, 2: 1}
    assert outcome.where(1) == {2: 1}


def test_nomination_to_a_missing_or_avoided_cell_is_ignored() -> None:
    assert run([core(1)], row(1, nominated_cell_id=7)).where(1) == {1: 1}
    assert run([core(1)], row(1, nominated_cell_id=1, avoid_cell_id=1)).where(1) == {1: 1}


def test_nomination_that_is_not_free_yet_does_not_block_a_strict_pool() -> None:
    busy = core(1, used={"cpu_millis": 1000})
    rows = [row(1), row(2, nominated_cell_id=1)]
    both: dict[str, Any] = {"nominations": (kept(1, 2),), "policy": STRICT}
    assert run([busy, core(2, 2)], *rows, **both).placed == {1: 1, 2: 1}


def test_strict_pool_places_nothing_after_the_first_misfit() -> None:
    rows = [row(1), row(2, 2, cpu=2000), row(3), row(4, coscheduled=True)]
    outcome = run([core(1, 4)], *rows, gangs={4: gang((4, 1, 1))}, policy=STRICT)
    assert outcome.placed == {1: 1, 2: 1}
    assert outcome.reasons[2]["code"] == "insufficient_resources"
    assert {n: outcome.reasons[n]["behind"] for n in (3, 4)} == {3: 2, 4: 2}


def test_exceeded_quota_does_not_block_a_strict_pool() -> None:
    limited = quota(ScopeKind.USER, 1, ScopeLimits(running_tasks=1))
    rows = [row(1, 2), row(2, owner_id=2)]
    assert run([core(1, 4)], *rows, quotas=(limited,), policy=STRICT).placed == {1: 1, 2: 1}


def test_gang_blocks_a_strict_pool_only_for_lack_of_capacity() -> None:
    limited = quota(ScopeKind.USER, 1, ScopeLimits(running_tasks=1))
    rows = [row(1, 2, coscheduled=True), row(2, owner_id=2)]
    all_of_it: dict[str, Any] = {"gangs": {1: gang((1, 2, 2))}, "policy": STRICT}
    assert run([core(1, 4)], *rows, quotas=(limited,), **all_of_it).placed == {2: 1}
    outcome = run([core(1, 1)], *rows, **all_of_it)
    assert (outcome.placed, outcome.reasons[2]["behind"]) == ({}, 1)


def test_further_gang_members_use_their_nominations() -> None:
    rows = [
        row(1, coscheduled=True, avoid_cell_id=9),
        row(1, coscheduled=True, nominated_cell_id=1),
    ]
    facts = GangFacts((1,), (GangGroupFacts({S.PENDING: 2}, 1),), 1)
    outcome = run([core(1), core(2)], *rows, gangs={1: facts}, nominations=(kept(1, 1),))
    assert outcome.placed == {1: 2}


def _place_on_reserved_capacity(cells: list[Any], **changes: Any) -> Outcome:
    """Place a gang of four, of which two suffice and have reserved capacity on cell 2."""
    rows = [
        row(1, 2, coscheduled=True, nominated_cell_id=2),
        row(1, 2, coscheduled=True, avoid_cell_id=9),
    ]
    facts = gang((1, 2, 4), **changes)
    return run(cells, *rows, gangs={1: facts}, nominations=(kept(2, 1, 2),))


def test_gang_stays_in_the_zone_of_its_reserved_capacity() -> None:
    cells = [core(1, 4, labels={"zone": "a"}), core(2, 3, labels={"zone": "b"})]
    assert _place_on_reserved_capacity(cells, group_by="zone").where(1) == {2: 3}


def test_gang_that_started_on_reserved_capacity_needs_no_further_minimum() -> None:
    assert _place_on_reserved_capacity([core(2, 3)]).placed == {1: 3}
    assert _place_on_reserved_capacity([core(1, 4), core(2, 2)]).placed == {1: 4}


def test_nomination_of_a_gang_is_kept_while_its_members_wait() -> None:
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


def test_gang_avoids_a_cell_as_long_as_it_fits_elsewhere_as_a_whole() -> None:
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


def test_late_pass_keeps_its_decisions_and_is_marked_incomplete() -> None:
    waited = pool([core(1, 9)], row(1), row(2, cpu=500), row(3, cpu=20_000))
    answers = iter([False, True])
    plan = place(
        waited.snapshot, waited.facts, waited.plugins, limit=9, is_late=lambda: next(answers)
    )
    assert plan.placements.group_ids == [1]
    assert (plan.complete, [item.shape_id for item in plan.shapes]) == (False, [])


def test_rows_with_and_without_a_preferred_cell_share_the_capacity() -> None:
    cells = [core(1, 2), core(2, 2)]
    rows = [row(1, 2, prefer_cell_id=1), row(2, 2, prefer_cell_id=1), row(3, 2)]
    outcome = run(cells, *rows)
    assert outcome.where(1) == {1: 2}
    assert outcome.where(2) == {2: 2}
    assert outcome.placed == {1: 2, 2: 2}


def test_strict_pool_places_a_gang_on_its_reservation_behind_a_blocked_task() -> None:
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


def test_gang_in_a_strict_pool_takes_only_its_reservation_before_its_turn() -> None:
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


def test_reservation_in_another_zone_takes_no_further_member_of_a_gang() -> None:
    """The members that run determine the zone, also if capacity was reserved elsewhere before."""
    cells = [core(1, labels={"zone": "a"}), core(2, 2, labels={"zone": "b"})]
    running = GangGroupFacts({S.ASSIGNED: 1, S.PENDING: 1}, 1)
    facts = GangFacts((1,), (running,), 1, group_by="zone", cell_ids=frozenset({2}))
    member = row(1, coscheduled=True, job=1, nominated_cell_id=1)
    reserved: dict[str, Any] = {"gangs": {1: facts}, "nominations": (kept(1, 1),)}
    outcome = run(cells, member, row(3), policy=STRICT, **reserved)
    assert outcome.where(1) == {2: 1}


def test_gang_with_reservations_in_two_zones_starts_in_one() -> None:
    cells = [core(1, labels={"zone": "a"}), core(2, labels={"zone": "b"})]
    rows = [row(1, coscheduled=True, nominated_cell_id=1), row(1, coscheduled=True)]
    rows[1] = replace(rows[1], nominated_cell_id=2)
    facts = replace(gang((1, 2, 2)), group_by="zone")
    reserved: dict[str, Any] = {"gangs": {1: facts}, "nominations": (kept(1, 1), kept(2, 1))}
    assert run(cells, *rows, policy=STRICT, **reserved).placed == {}
    larger = [core(1, labels={"zone": "a"}), core(2, 2, labels={"zone": "b"})]
    assert run(larger, *rows, policy=STRICT, **reserved).where(1) == {2: 2}
