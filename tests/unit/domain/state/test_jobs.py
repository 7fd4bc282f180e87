"""A job follows from its tasks: its state, how it is to end, and which of its groups may start."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.dependencies import JobMilestones
from controlplane.domain.state.facts import GroupFacts
from controlplane.domain.state.job_rollup import (
    GroupRow,
    JobRow,
    StartableGroup,
    gang_of,
    has_follow_up,
    impossible_groups,
    milestones_of,
    newly_startable,
    roll_job,
)
from controlplane.domain.state.states import REASONS, TERMINAL, Reason
from tests.harness.domain.facts import CREATED, NOW

OK, F, K, P, R, WF, U = (
    S.SUCCEEDED,
    S.FAILED,
    S.KILLED,
    S.PENDING,
    S.RUNNING,
    S.WORKER_FAILED,
    S.UNSCHEDULABLE,
)
LATER = NOW + timedelta(hours=1)


def group(
    counts: dict[S, int],
    *,
    least: int | None = None,
    name: str = "a",
    after: tuple[tuple[str, str], ...] = (),
    startable_at: datetime | None = CREATED,
    **rest: object,
) -> GroupRow:
    """A group. Its minimum is by default all its tasks."""
    minimum = sum(counts.values()) if least is None else least
    facts = GroupFacts(ord(name[0]), name, counts, minimum, after, startable_at)
    return GroupRow(facts, **rest)  # type: ignore[arg-type]


def job(*groups: GroupRow, **changes: object) -> JobRow:
    minimum = sum(row.facts.min_available for row in groups)
    row = JobRow(1, R, minimum, explicit_minimum=False, max_task_failures=0, started_at=CREATED)
    return replace(row, **changes)  # type: ignore[arg-type]


def rolled(*groups: GroupRow, **changes: object) -> JobRow:
    return roll_job(job(*groups, **changes), groups, now=NOW)


# Its state.


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_terminal_is_final(state: S) -> None:
    done = job(state=state, finished_at=CREATED, failure_reason="why")
    assert roll_job(done, [group({R: 1})], now=NOW) is done


def test_job_with_an_open_task_stays_open() -> None:
    assert rolled(group({R: 1})) == job(group({R: 1}))
    waiting = rolled(group({P: 1}), state=P, started_at=None)
    assert (waiting.state, waiting.finished_at, waiting.ending_as) == (P, None, None)
    assert rolled(group({P: 1, S.ASSIGNED: 1}), state=P, started_at=None).state is R
    assert rolled(group({P: 1}), state=P).state is R


def test_job_returns_to_pending_only_if_no_task_ever_ran() -> None:
    assert rolled(group({P: 1}), state=R, started_at=None).state is P
    assert rolled(group({P: 1}), state=R, started_at=CREATED).state is R


def test_ending_job_stays_running_until_its_tasks_have_ended() -> None:
    rest = group({P: 1, K: 1})
    assert rolled(rest, state=R, started_at=None, ending_as=K).state is R
    assert rolled(rest, state=P, started_at=None, ending_as=K).state is P
    assert rolled(rest, state=R, started_at=None).state is R


def test_job_ends_once_all_its_tasks_have_ended() -> None:
    done = rolled(group({OK: 2}))
    assert (done.state, done.finished_at, done.failure_reason) == (OK, NOW, "")
    assert (done.ending_as, done.ending_reason) == (None, "")


def test_decided_outcome_is_stored_before_all_tasks_have_ended() -> None:
    ending = rolled(group({F: 1, R: 1}))
    assert (ending.state, ending.finished_at) == (R, None)
    assert (ending.ending_as, ending.ending_reason) == (F, Reason.TASKS_DECIDED)
    waiting = rolled(group({F: 1, P: 1}), state=P, started_at=None)
    assert (waiting.state, waiting.ending_as) == (P, F)


def test_given_outcome_overrides_later_results() -> None:
    given = {"ending_as": K, "ending_reason": Reason.CANCELLED}
    still = rolled(group({F: 1, R: 1}), **given)
    assert (still.state, still.ending_as, still.ending_reason) == (R, K, Reason.CANCELLED)
    done = rolled(group({F: 1, OK: 1}), **given)
    assert (done.state, done.failure_reason) == (K, REASONS[Reason.CANCELLED])


def test_message_of_the_cancellation_is_the_failure_reason() -> None:
    done = rolled(group({K: 1}), ending_as=K, failure_reason="nobody needs it")
    assert done.failure_reason == "nobody needs it"
    assert rolled(group({OK: 1}), failure_reason="nobody needs it").failure_reason == ""


@pytest.mark.parametrize(
    ("row", "changes", "state", "why"),
    [
        (group({F: 1, OK: 1}), {}, F, "1 task failed, 0 tolerated"),
        (group({F: 3}), {"max_task_failures": 2}, F, "3 tasks failed, 2 tolerated"),
        (group({F: 2}), {"max_task_failures": 2}, F, "only 0 tasks succeeded, which is too few"),
        (
            group({F: 2, OK: 1}, least=2),
            {"max_task_failures": 2, "explicit_minimum": True},
            F,
            "only 1 task of group a succeeded, 2 must",
        ),
        (
            group({F: 2, OK: 1}, least=0),
            {"max_task_failures": 2, "explicit_minimum": True, "min_available": 2},
            F,
            "only 1 task succeeded, which is too few",
        ),
        (group({U: 1, OK: 1}), {}, U, "1 task could not be placed"),
        (group({K: 2, OK: 1}), {}, K, "killed: 2 tasks"),
        (
            group({WF: 1, S.PREEMPTED: 1}),
            {},
            WF,
            "no retry left after a lost cell or preemption: 2 tasks",
        ),
        (
            group({F: 1, K: 1}),
            {"ending_as": F, "ending_reason": Reason.TASKS_DECIDED},
            F,
            "1 task failed, 0 tolerated",
        ),
    ],
)
def test_failure_reason_has_counts_of_tasks(
    row: GroupRow, changes: dict[str, object], state: S, why: str
) -> None:
    done = rolled(row, **changes)
    assert (done.state, done.failure_reason) == (state, why)


def test_rollup_uses_minima_tolerance_and_excused_tasks_of_the_rows() -> None:
    assert rolled(group({F: 1, OK: 1}), max_task_failures=1).state is OK
    assert rolled(group({F: 1, OK: 1}, least=1), max_task_failures=1).state is OK
    assert rolled(group({WF: 1, OK: 1}, least=1), explicit_minimum=True).state is OK
    assert rolled(group({WF: 1, OK: 1}, least=1)).state is WF
    assert rolled(group({WF: 1, OK: 1})).state is WF
    needs_more = {"min_available": 2, "explicit_minimum": True}
    assert rolled(group({WF: 1, OK: 1}, least=1), **needs_more).state is WF
    assert rolled(group({WF: 1, OK: 2}, least=1), **needs_more).state is OK
    excused = group({K: 1, OK: 1}, killed_by_dependency=1)
    assert rolled(excused).state is not K


# Gangs.


def gang(*groups: GroupRow, **changes: object) -> JobRow:
    return rolled(*groups, coscheduled=True, **changes)


def test_gang_below_its_minima_is_requeued() -> None:
    fallen = gang(group({R: 1, P: 1}))
    assert (fallen.is_requeuing, fallen.state, fallen.ending_as) == (True, R, None)
    assert gang(group({R: 2})).is_requeuing is False
    assert rolled(group({R: 1, P: 1})).is_requeuing is False


def test_requeue_lasts_until_no_movable_member_is_active() -> None:
    whole = group({R: 1, P: 1}, least=1)
    assert gang(whole).is_requeuing is False
    assert gang(whole, is_requeuing=True).is_requeuing is True
    assert gang(group({P: 2}), is_requeuing=True).is_requeuing is False
    gone = group({P: 1}, least=0, name="b")
    assert gang(whole, gone, is_requeuing=True).is_requeuing is True
    stays = group({R: 1, P: 1}, least=1, at_most_once=True)
    assert gang(stays, is_requeuing=True).is_requeuing is False


def test_broken_gang_ends_as_worker_failed() -> None:
    broken = gang(group({F: 1, R: 1}), max_task_failures=1)
    assert (broken.state, broken.ending_as) == (R, WF)
    assert broken.ending_reason == Reason.GANG_SIBLING_FAILED
    # Applied before the job is rolled up, which still has its own rules.
    assert gang(group({F: 1, R: 1})).ending_as is F
    done = roll_job(broken, [group({F: 1, WF: 1})], now=NOW)
    assert (done.state, done.failure_reason) == (WF, REASONS[Reason.GANG_SIBLING_FAILED])


def test_ending_or_broken_gang_is_not_requeued() -> None:
    fallen = group({R: 1, P: 1})
    assert gang(fallen, ending_as=K, is_requeuing=True).is_requeuing is False
    assert gang(group({WF: 1, R: 1}), is_requeuing=True).is_requeuing is False
    assert rolled(fallen, is_requeuing=True).is_requeuing is False
    decided = gang(group({F: 1, R: 2}, least=1), is_requeuing=True)
    assert (decided.ending_as, decided.is_requeuing) == (F, False)


def test_job_minimum_applies_to_its_gang() -> None:
    members = group({R: 2, P: 1}, least=1)
    assert gang(members, min_available=2).is_requeuing is False
    assert gang(members, min_available=3).is_requeuing is True


def test_at_most_once_group_is_not_requeued_with_its_gang() -> None:
    rows = [group({R: 1, P: 1}, at_most_once=True), group({R: 1})]
    assert [row.is_movable for row in gang_of(rows)] == [False, True]
    assert [row.min_available for row in gang_of(rows)] == [2, 1]
    assert [row.counts for row in gang_of(rows)] == [{R: 1, P: 1}, {R: 1}]
    assert gang(group({R: 1, P: 1}, at_most_once=True)).is_requeuing is False


# What goes on after it.


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, False),
        ({"ending_as": K}, True),
        ({"ending_as": K, "finished_at": NOW}, False),
        ({"is_requeuing": True}, True),
        ({"is_watched": True}, True),
        ({"is_watched": True, "finished_at": NOW}, True),
    ],
)
def test_convergence_follows_up_ending_requeuing_and_watched_jobs(
    changes: dict[str, object], expected: bool
) -> None:
    assert has_follow_up(job(**changes)) is expected


def test_milestones_of_a_job_are_state_start_and_settling() -> None:
    row = job(state=K, settled_at=NOW)
    assert milestones_of(row) == JobMilestones(K, CREATED, NOW)


# Which groups may start.

AFTER_A = (("a", "succeeded"),)


def startable(*groups: GroupRow, **changes: object) -> tuple[StartableGroup, ...]:
    return newly_startable(job(*groups, **changes), groups, now=NOW)


def waiting(counts: dict[S, int] | None = None) -> GroupRow:
    return group(counts or {P: 1}, name="b", after=AFTER_A, startable_at=None)


def test_group_may_start_once_its_dependencies_are_met() -> None:
    assert startable(group({OK: 1}), waiting()) == (StartableGroup(ord("b"), NOW, None),)
    assert startable(group({R: 1}), waiting()) == ()
    assert startable(group({F: 1}), waiting()) == ()


def test_group_that_may_start_is_not_reported_again() -> None:
    assert startable(group({OK: 1}), group({P: 1}, name="b", after=AFTER_A)) == ()


@pytest.mark.parametrize(
    "changes", [{"state": K}, {"ending_as": K}, {"waits_for_jobs": True}], ids=str
)
def test_no_group_starts_while_its_job_ends_or_waits_for_others(
    changes: dict[str, object],
) -> None:
    assert startable(group({OK: 1}), waiting(), **changes) == ()


def test_scheduling_deadline_counts_from_the_earliest_start() -> None:
    def found(**changes: object) -> StartableGroup:
        (one,) = startable(group({OK: 1}), waiting(), **changes)
        return one

    minute = timedelta(minutes=1)
    assert found(start_after=LATER).at == LATER
    assert found(start_after=CREATED).at == NOW
    assert found(scheduling_timeout_seconds=60).deadline == NOW + minute
    assert found(scheduling_timeout_seconds=0).deadline == NOW
    both = found(start_after=LATER, scheduling_timeout_seconds=60)
    assert (both.at, both.deadline) == (LATER, LATER + minute)


def test_group_with_an_impossible_dependency_is_found_while_its_tasks_are_open() -> None:
    def hopeless(*rows: GroupRow) -> list[str]:
        found = impossible_groups({row.facts.name: row.facts for row in rows})
        return [facts.name for facts in found]

    failed = group({F: 1})
    assert hopeless(failed, waiting()) == ["b"]
    assert hopeless(failed, waiting({K: 1})) == []
    assert hopeless(group({R: 1}), waiting()) == []
    assert hopeless(failed, group({P: 1}, name="b", after=AFTER_A)) == []
