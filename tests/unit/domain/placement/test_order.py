"""The order of rows: bands, gangs that have begun, children, the sequencer; and mere ranks."""

from typing import Any

import pytest

from controlplane.contract.states import TaskState as S
from controlplane.domain.constraints import Constraint, Operator, Tags
from controlplane.domain.placement.model.policy import PoolPolicy
from controlplane.domain.placement.model.snapshot import GangFacts
from controlplane.domain.scopes import ScopeKind, ScopeLimits
from controlplane.domain.state.gangs import GangGroupFacts
from controlplane.domain.state.states import Band
from tests.unit.domain.placement.pools import cell, gang, quota, row, run

LIFO = PoolPolicy(sequencer="lifo")
DRF = PoolPolicy(sequencer="drf")
IN_A = Constraint("zone", Operator.EQ, ("a",))


def core(number: int, cores: int = 1, **changes: Any) -> Any:
    return cell(number, cpu=cores * 1000, **changes)


def zoned(number: int, zone: str, cores: int = 1, **changes: Any) -> Any:
    return core(number, cores, labels={"zone": zone}, **changes)


@pytest.mark.parametrize("sequencer", ["fifo", "lifo", "drf", "fair_share", "fair_projects"])
def test_higher_band_comes_first_regardless_of_order_and_owner(sequencer: str) -> None:
    rows = [
        row(1, band=Band.BATCH),
        row(2, band=Band.INTERACTIVE, owner_id=2),
        row(3, band=Band.PRODUCTION),
    ]
    policy = PoolPolicy(sequencer=sequencer)
    assert run([core(1, 2)], *rows, policy=policy).placed == {3: 1, 2: 1}


@pytest.mark.parametrize(("policy", "order"), [(PoolPolicy(), [2, 1, 3]), (LIFO, [2, 3, 1])])
def test_child_jobs_come_before_new_jobs_in_sequencer_order(
    policy: PoolPolicy, order: list[int]
) -> None:
    rows = [row(1), row(2, cpu=900, is_child=True), row(3, cpu=800)]
    outcome = run([core(1, 9)], *rows, policy=policy)
    assert outcome.plan.placements.group_ids == order


@pytest.mark.parametrize(
    ("sequencer", "order"),
    [
        ("fifo", [3, 5, 1, 4, 2]),
        ("lifo", [3, 5, 4, 1, 2]),
        # Owners take turns; a moved job changes its place only among those of its owner.
        ("drf", [3, 4, 5, 1, 2]),
    ],
)
def test_moved_jobs_are_at_the_front_and_the_end_of_their_band(
    sequencer: str, order: list[int]
) -> None:
    rows = [
        row(1),
        row(2, cpu=900, rank=1, is_child=True),
        row(3, cpu=800, rank=-2),
        row(4, cpu=700, owner_id=2),
        row(5, cpu=600, rank=-1),
        row(6, cpu=500, rank=-9, band=Band.BATCH),
    ]
    outcome = run([core(1, 9)], *rows, policy=PoolPolicy(sequencer=sequencer))
    assert outcome.plan.placements.group_ids == [*order, 6]


def test_lifo_keeps_the_order_of_groups_within_a_job() -> None:
    rows = [row(1, job=1), row(21, job=2, cpu=900), row(22, job=2, cpu=800)]
    outcome = run([core(1, 9)], *rows, policy=LIFO)
    assert outcome.plan.placements.group_ids == [21, 22, 1]


@pytest.mark.parametrize("sequencer", ["fifo", "drf"])
def test_remaining_members_of_a_started_gang_come_first_in_their_band(sequencer: str) -> None:
    begun = GangFacts((2,), (GangGroupFacts({S.RUNNING: 3, S.PENDING: 1}, 4),), 4)
    rows = [row(1), row(2, coscheduled=True, is_first=True), row(3, band=Band.PRODUCTION)]
    policy = PoolPolicy(sequencer=sequencer)
    # It counts against its owner that three of it run: DRF alone would leave it for later.
    usage = {1: {"cpu_millis": 3000}}
    one = run([core(1, 2)], *rows, gangs={2: begun}, policy=policy, owner_usage=usage)
    assert one.placed == {3: 1, 2: 1}


def test_preferred_constraints_rank_cells_without_excluding_any() -> None:
    preference = Constraint("zone", Operator.EQ, ("a",), required=False)
    cells = [zoned(1, "b", 4), zoned(2, "a", 2), core(3, 4)]
    assert run(cells, row(1, 2, constraints=(preference,))).per_cell == {2: 2}
    assert run(cells, row(1, 4, constraints=(preference,))).per_cell == {2: 2, 1: 1, 3: 1}
    two = Constraint("gb", Operator.GE, ("8",), required=False)
    both = cell(4, cpu=1000, labels={"zone": "a", "gb": "16"})
    assert run([*cells, both], row(1, 2, constraints=(preference, two))).per_cell == {4: 1, 2: 1}


def test_required_constraints_and_tags_exclude_cells() -> None:
    cells = [zoned(1, "a"), zoned(2, "b", 9), zoned(3, "a", 9, tags=Tags.read(["big"]))]
    plain = run(cells, row(1, 5, constraints=(IN_A,)))
    assert plain.per_cell == {1: 1}
    tagged = run(cells, row(1, 5, constraints=(IN_A,), placement_tags=("big",)))
    assert tagged.per_cell == {3: 5}


def test_grouped_gang_takes_the_first_label_value_where_it_fits() -> None:
    cells = [zoned(1, "a", 2), zoned(2, "b", 2), zoned(3, "b", 2), core(4, 9)]
    rows = [row(1, 3, coscheduled=True)]
    outcome = run(cells, *rows, gangs={1: gang((1, 3, 3), group_by="zone")})
    assert outcome.per_cell == {2: 2, 3: 1}
    waits = run(cells, row(1, 5, coscheduled=True), gangs={1: gang((1, 5, 5), group_by="zone")})
    assert waits.placed == {}
    assert (waits.reasons[1]["need"], waits.reasons[1]["have"]) == (5, 4)
    assert "with the same value of zone" in waits.reasons[1]["text"]
    nowhere = run([core(4, 9)], *rows, gangs={1: gang((1, 3, 3), group_by="zone")})
    assert nowhere.reasons[1]["text"].endswith("no ready cell has the label zone")


def test_grouped_gang_reason_names_the_value_that_could_hold_it() -> None:
    capacity = {"cpu_millis": 2000, "memory_mib": 8192, "gpu": 1}
    full = {"used": {"cpu_millis": 2000, "gpu": 1}}
    cells = [zoned(1, "a", 9), zoned(2, "b", 2, capacity=capacity, **full)]
    rows = [
        row(1, 2, coscheduled=True),
        row(2, 1, job=1, coscheduled=True, resources={"gpu": 1}),
    ]
    gangs = {1: gang((1, 2, 2), (2, 1, 1), group_by="zone")}
    outcome = run(cells, *rows, gangs=gangs)
    assert "cell-002 comes closest and lacks 1 gpu" in outcome.reasons[1]["text"]
    assert outcome.plan.unplaced


def test_running_members_fix_the_label_value_of_a_grouped_gang() -> None:
    cells = [zoned(1, "a", 9), zoned(2, "b", 1)]
    facts = GangFacts(
        (1,), (GangGroupFacts({S.RUNNING: 1, S.PENDING: 2}, 1),), 1, "zone", frozenset({2})
    )
    outcome = run(cells, row(1, 2, coscheduled=True, is_first=True), gangs={1: facts})
    assert outcome.per_cell == {2: 1}
    assert outcome.reasons[1]["cell"] == "cell-002"
    elsewhere = row(1, 2, coscheduled=True, is_first=True, constraints=(IN_A,))
    reason = run(cells, elsewhere, gangs={1: facts}).reasons[1]
    assert reason["removed"] == {"zone = a": 1, "cells shared with the rest of its gang": 1}


def test_tokens_are_counted_over_the_whole_pool() -> None:
    policy = PoolPolicy(tokens={"licence": 3})
    options: dict[str, Any] = {"resources": {"cpu_millis": 1, "licence": 1}}
    outcome = run(
        [core(1), core(2)], row(1, 5, **options), row(2), policy=policy, tokens_used={"licence": 1}
    )
    assert outcome.placed == {1: 2}
    assert outcome.reasons[1]["code"] == "insufficient_tokens"
    assert outcome.reasons[1]["text"] == "tokens licence: 3 used + 1 requested > 3 of the pool"
    whole = run(
        [core(1)], row(1, 4, coscheduled=True, **options), gangs={1: gang((1, 4, 4))}, policy=policy
    )
    assert whole.placed == {}
    assert "tokens licence: 0 used + 4 requested > 3" in whole.reasons[1]["text"]


def test_build_slots_limit_the_starts_per_cell() -> None:
    cells = [core(1, 9, start_slots=2), core(2, 9, start_slots=0)]
    outcome = run(cells, row(1, 5))
    assert outcome.per_cell == {1: 2}
    assert outcome.reasons[1]["code"] == "build_slots_full"
    assert outcome.reasons[1]["cells"] == 2


def test_pending_task_limit_of_a_user_defers_further_tasks() -> None:
    limited = quota(ScopeKind.USER, 1, ScopeLimits(pending_tasks=2))
    rows = [row(1, 2, cpu=9000), row(2, cpu=500), row(3, cpu=400, owner_id=2)]
    outcome = run([core(1, 2)], *rows, quotas=(limited,))
    assert outcome.placed == {3: 1}
    assert outcome.reasons[1]["code"] == "insufficient_resources"
    assert (outcome.reasons[2]["what"], outcome.reasons[2]["used"]) == ("pending_tasks", 2)
    assert run([core(1, 9)], row(1, 5), quotas=(limited,)).placed == {1: 5}


def test_request_above_a_quota_is_rejected_and_a_busy_quota_defers() -> None:
    limited = quota(ScopeKind.USER, 1, ScopeLimits(resources={"cpu_millis": 1500}))
    outcome = run([core(1, 9)], row(1, cpu=2000), row(2, 2), quotas=(limited,))
    assert [item.group_id for item in outcome.plan.rejected] == [1]
    assert outcome.placed == {2: 1}
    allowed = run([core(1, 9)], row(1, cpu=2000, allow_unsatisfiable=True), quotas=(limited,))
    assert allowed.plan.rejected == ()
    assert allowed.reasons[1]["code"] == "quota_exceeded"
