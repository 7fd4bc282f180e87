"""Gangs: minima that hold together or not at all, per group and for the job (Iris, Volcano)."""

from collections import Counter

import pytest

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.gangs import (
    GangGroupFacts,
    GangVerdict,
    judge_gang,
    meets_minima,
    missing,
    with_placed,
    without_the_open,
)
from controlplane.domain.state.states import ACTIVE

HOLDS, FELL_BELOW, BROKEN = GangVerdict.HOLDS, GangVerdict.FELL_BELOW, GangVerdict.BROKEN
P, A, B, R = S.PENDING, S.ASSIGNED, S.BUILDING, S.RUNNING
OK, F, WF, PRE, K = S.SUCCEEDED, S.FAILED, S.WORKER_FAILED, S.PREEMPTED, S.KILLED


def group(*states: S, least: int, movable: bool = True) -> GangGroupFacts:
    return GangGroupFacts(Counter(states), least, movable)


def verdict(*groups: GangGroupFacts, least: int | None = None) -> GangVerdict:
    return judge_gang(groups, sum(g.min_available for g in groups) if least is None else least)


@pytest.mark.parametrize("state", [*sorted(ACTIVE), OK])
def test_active_or_succeeded_member_counts(state: S) -> None:
    assert group(state, least=1).present == 1
    assert verdict(group(state, R, least=2)) is HOLDS


@pytest.mark.parametrize("state", [P, F, K, WF, PRE, S.UNSCHEDULABLE])
def test_a_member_that_waits_or_failed_does_not_count(state: S) -> None:
    assert group(state, least=1).present == 0
    assert not meets_minima([group(state, R, least=2)], 2)


def test_fully_pending_gang_is_left_to_placement() -> None:
    assert verdict(group(P, P, least=2)) is HOLDS


@pytest.mark.parametrize("state", sorted(ACTIVE))
def test_gang_below_its_minimum_is_requeued(state: S) -> None:
    assert verdict(group(state, P, least=2)) is FELL_BELOW
    assert verdict(group(state, R, P, least=2)) is HOLDS


def test_one_group_below_its_minimum_requeues_the_gang() -> None:
    whole = group(R, R, least=2)
    assert verdict(whole, group(R, P, least=2)) is FELL_BELOW
    assert verdict(whole, group(R, P, least=1)) is HOLDS


def test_job_minimum_counts_over_all_groups() -> None:
    groups = (group(R, R, P, least=1), group(R, P, least=1))
    assert verdict(*groups, least=3) is HOLDS
    assert verdict(*groups, least=4) is FELL_BELOW


@pytest.mark.parametrize("failed", [F, WF, PRE])
def test_a_gang_that_can_never_meet_its_minima_again_is_broken(failed: S) -> None:
    assert verdict(group(failed, R, least=2)) is BROKEN
    assert verdict(group(failed, P, least=2)) is BROKEN
    # What is left may still be enough: all present, or some of it waiting.
    assert verdict(group(failed, R, R, least=2)) is HOLDS
    assert verdict(group(failed, R, P, least=2)) is FELL_BELOW
    assert verdict(group(failed, R, R, least=1), group(R, least=1), least=4) is BROKEN


@pytest.mark.parametrize("state", [K, S.UNSCHEDULABLE])
def test_killed_or_unschedulable_member_does_not_break_the_gang(state: S) -> None:
    assert verdict(group(state, R, least=2)) is not BROKEN


def test_at_most_once_group_is_not_requeued() -> None:
    assert verdict(group(R, P, least=2, movable=False)) is HOLDS
    assert verdict(group(R, P, least=2, movable=False), group(R, least=1)) is FELL_BELOW
    assert group(A, B, R, OK, least=1, movable=False).movable == 0
    assert group(A, B, R, OK, P, least=1).movable == 3


def test_members_are_movable_by_default() -> None:
    assert GangGroupFacts({R: 1}, 1).is_movable is True


# What must be placed at once.


@pytest.mark.parametrize(
    ("groups", "least", "needs", "extra"),
    [
        ([group(P, P, P, least=2)], 2, [2], 0),
        ([group(P, P, P, least=2)], 3, [2], 1),
        ([group(P, P, R, least=2)], 2, [1], 0),
        ([group(R, R, P, least=2)], 2, [0], 0),
        ([group(P, P, least=1), group(P, P, least=2)], 3, [1, 2], 0),
        # What the job's own minimum needs beyond the groups' may come from any group.
        ([group(P, P, P, least=1), group(P, P, least=1)], 4, [1, 1], 2),
        ([group(P, least=1), group(P, P, P, least=1)], 4, [1, 1], 2),
        ([group(R, R, R, least=1), group(P, P, P, least=1)], 5, [0, 1], 1),
        ([group(R, R, R, P, least=1), group(P, P, least=1)], 4, [0, 1], 0),
        ([group(OK, OK, P, P, least=2), group(P, P, P, least=0)], 4, [0, 0], 2),
        ([group(P, P, P, least=0), group(P, P, P, least=0)], 0, [0, 0], 0),
        # More than there is cannot be placed; placement reports that it lacks.
        ([group(P, F, least=1)], 5, [1], 4),
        ([group(F, F, least=2), group(P, P, P, P, least=1)], 5, [2, 1], 2),
        ([group(F, least=0), group(P, P, P, least=1)], 3, [0, 1], 2),
    ],
)
def test_missing_members_are_placed_at_once(
    groups: list[GangGroupFacts], least: int, needs: list[int], extra: int
) -> None:
    assert missing(groups, least) == (needs, extra)


@pytest.mark.parametrize("split", [(2, 1), (1, 2)])
def test_gang_meets_its_minima_with_the_missing_members_in_any_split(
    split: tuple[int, int],
) -> None:
    groups = [group(P, P, P, least=1), group(P, P, R, least=2)]
    assert missing(groups, 4) == ([1, 1], 1)
    after = [
        GangGroupFacts(with_placed(one.counts, count), one.min_available)
        for one, count in zip(groups, split, strict=True)
    ]
    assert not meets_minima(groups, 4)
    assert meets_minima(after, 4)


def test_placed_members_are_no_longer_pending() -> None:
    assert with_placed({P: 3, A: 1, R: 2}, 2) == {P: 1, A: 3, R: 2}
    assert with_placed({P: 2}, 2) == {P: 0, A: 2}
    assert with_placed({}, 0) == {P: 0, A: 0}


def test_open_members_of_a_broken_gang_count_as_worker_failed() -> None:
    counts = {P: 1, A: 2, B: 3, R: 4, OK: 5, F: 6, WF: 7}
    assert without_the_open(counts) == {OK: 5, F: 6, WF: 17}
    assert without_the_open({OK: 1}) == {OK: 1, WF: 0}
