"""Properties of the state table, the rollup and gangs, against their text and by brute force."""

from collections import Counter
from dataclasses import astuple
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.contract.states import TaskState as S
from controlplane.domain.errors import IllegalTransition
from controlplane.domain.state.gangs import (
    GangGroupFacts,
    judge_gang,
    meets_minima,
    missing,
    with_placed,
)
from controlplane.domain.state.rollup import GroupTally, JobTally, job_state
from controlplane.domain.state.states import (
    ACTIVE,
    JOB_STATES,
    TERMINAL,
    Reason,
    RetryAction,
    RetryBudget,
)
from controlplane.domain.state.task_changes import ChangeCause, change_task
from controlplane.domain.state.transitions import (
    HEALTHY_RUN_SECONDS,
    TRANSITIONS,
    Counters,
    Event,
    RetryLimits,
    advance,
    is_legal,
)
from tests.harness.domain import facts
from tests.properties import restatement as text

PAIRS = list(product(S, Event))
limits = st.builds(RetryLimits, st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))


# ------------------------------------------------------------------------------ tasks


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_each_state_and_event_is_in_the_table_or_illegal(state: S, event: Event) -> None:
    attempt = facts.attempt(state) if state in ACTIVE else None
    task = facts.task(state, attempt)
    if is_legal(state, event):
        change = change_task(task, event, ChangeCause(Reason.CANCELLED), now=facts.NOW)
        assert (change.task_from, change.task_to is state) == (state, False)
    else:
        with pytest.raises(IllegalTransition):
            change_task(task, event, ChangeCause(Reason.CANCELLED), now=facts.NOW)


def test_terminal_is_final() -> None:
    assert not [pair for pair in TRANSITIONS if pair[0] in TERMINAL]


COUNTS = (0, 1, 2)


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_table_matches_its_restatement(state: S, event: Event) -> None:
    refusals = (0, 1, 3, 4, 5)
    for counts in product(COUNTS, COUNTS, COUNTS, COUNTS, refusals):
        used = (*counts, counts[0])  # as many crashes as failures: the two are independent
        rans, actions = (0.0, HEALTHY_RUN_SECONDS), (None, *RetryAction)
        for limit, ran, once, action in product((0, 1, 2), rans, (False, True), actions):
            wanted = text.follow(
                state,
                event,
                text.Used(*used),
                (limit, limit, limit),
                ran=ran,
                once=once,
                rule=action or "",
            )
            assert (wanted is not None) == is_legal(state, event)
            if wanted is None:
                continue
            found = advance(
                state,
                event,
                counters=Counters(*used),
                limits=RetryLimits(limit, limit, limit),
                ran_seconds=ran,
                is_final=once,
                action=action,
            )
            assert (found.task, found.attempt) == (wanted.task, wanted.attempt)
            assert (found.charged or "", found.charge) == (wanted.charged, wanted.charge)
            assert astuple(found.counters) == astuple(wanted.used)


@given(limits, st.lists(st.tuples(st.sampled_from(list(Event)), st.floats(0, 200)), max_size=60))
def test_counters_stay_consistent_for_any_history(
    limit: RetryLimits, events: list[tuple[Event, float]]
) -> None:
    state, counters = S.PENDING, Counters()
    charged: Counter[RetryBudget] = Counter()
    for event, ran in events:
        if (state, event) not in TRANSITIONS:
            continue
        outcome = advance(state, event, counters=counters, limits=limit, ran_seconds=ran)
        for old, new in zip(astuple(counters)[:3], astuple(outcome.counters)[:3], strict=True):
            assert old <= new
        grown = sum(astuple(outcome.counters)[:3]) - sum(astuple(counters)[:3])
        assert grown == outcome.charge
        assert bool(outcome.charge) == (outcome.charged is not None)
        # Only an attempt's end is charged, and it ends once.
        assert outcome.charged is None or outcome.attempt in TERMINAL
        if outcome.charged:
            charged[outcome.charged] += outcome.charge
        state, counters = outcome.task, outcome.counters
        assert (outcome.attempt in TERMINAL) or state in ACTIVE or outcome.attempt is None
    assert charged[RetryBudget.FAILURE] == counters.failure <= limit.failure + 1
    assert charged[RetryBudget.PREEMPTION] == counters.preemption <= limit.preemption + 1
    assert charged[RetryBudget.SYSTEM] == counters.system
    assert counters.system_row <= limit.system + 1


# ------------------------------------------------------------------------------- jobs

states = st.sampled_from(list(S))


@st.composite
def groups_of(draw: st.DrawFn, of: st.SearchStrategy[S] = states) -> text.Group:
    found = draw(st.lists(of, min_size=1, max_size=4))
    minimum = draw(st.integers(0, len(found)))
    excused = draw(st.integers(0, found.count(S.KILLED)))
    return text.Group(found, minimum, excused, draw(st.booleans()))


@st.composite
def jobs_of(draw: st.DrawFn, of: st.SearchStrategy[S] = states) -> text.Job:
    groups = draw(st.lists(groups_of(of), min_size=1, max_size=3))
    least = sum(group.minimum for group in groups)
    most = sum(len(group.states) for group in groups)
    minimum = draw(st.integers(least, most))
    is_explicit, has_started = draw(st.booleans()), draw(st.booleans())
    return text.Job(groups, minimum, is_explicit, draw(st.integers(0, 4)), has_started)


def tally_of(job: text.Job) -> JobTally:
    tallies = tuple(
        GroupTally(Counter(group.states), group.minimum, group.excused) for group in job.groups
    )
    return JobTally(tallies, job.minimum, job.tolerated, job.is_explicit, job.ever_started)


@given(jobs_of())
def test_rollup_is_total_and_matches_its_restatement(job: text.Job) -> None:
    found = job_state(tally_of(job))
    assert found is text.derive(job)
    assert found in JOB_STATES


@pytest.mark.parametrize("tolerated", [0, 1, 2])
@pytest.mark.parametrize("explicit", [None, 0, 1, 2, 3])
def test_rollup_of_three_tasks_matches_in_every_case(tolerated: int, explicit: int | None) -> None:
    for found in product(S, repeat=3):
        for started, excused in product((False, True), range(found.count(S.KILLED) + 1)):
            minimum = 3 if explicit is None else explicit
            group = text.Group(list(found), minimum, excused)
            job = text.Job([group], minimum, explicit is not None, tolerated, started)
            assert job_state(tally_of(job)) is text.derive(job), job


@given(jobs_of(), st.randoms())
def test_the_rollup_does_not_depend_on_order(job: text.Job, random) -> None:  # type: ignore[no-untyped-def]
    before = job_state(tally_of(job))
    for group in job.groups:
        random.shuffle(group.states)
    random.shuffle(job.groups)
    assert job_state(tally_of(job)) is before


@given(jobs_of())
def test_decided_job_state_is_kept_whatever_its_open_tasks_become(job: text.Job) -> None:
    """What decides before all have ended is not undecided by the killing of the rest."""
    before = job_state(tally_of(job))
    if before not in TERMINAL:
        return
    for group in job.groups:
        group.states = [S.KILLED if state in text.OPEN else state for state in group.states]
    assert job_state(tally_of(job)) is before


# ------------------------------------------------------------------------------ gangs


def gang_of(job: text.Job) -> list[GangGroupFacts]:
    return [GangGroupFacts(Counter(g.states), g.minimum, g.is_movable) for g in job.groups]


@given(jobs_of())
def test_gang_verdict_matches_brute_force(job: text.Job) -> None:
    gang = gang_of(job)
    assert judge_gang(gang, job.minimum).value == text.judge(job.groups, job.minimum)
    assert meets_minima(gang, job.minimum) == text.holds(
        job.groups, job.minimum, text.present_of(job.groups)
    )


waiting = st.sampled_from([S.PENDING, S.PENDING, S.RUNNING, S.SUCCEEDED, S.FAILED])


@given(jobs_of(waiting))
def test_missing_members_of_a_gang_are_the_fewest_sufficient(job: text.Job) -> None:
    gang = gang_of(job)
    needs, extra = missing(gang, job.minimum)
    left = [group.states.count(S.PENDING) for group in job.groups]
    after = []
    for group, need, there in zip(gang, needs, left, strict=True):
        placed = min(need, there)
        placed += min(there - placed, extra)
        extra -= placed - min(need, there)
        after.append(GangGroupFacts(with_placed(group.counts, placed), group.min_available))
    fewest = text.fewest(job.groups, job.minimum)
    assert meets_minima(after, job.minimum) == (fewest is not None)
    if fewest is not None:
        assert sum(missing(gang, job.minimum)[0]) + missing(gang, job.minimum)[1] == fewest
