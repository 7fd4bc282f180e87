"""Properties of the state table and the rollup over random histories."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from controlplane.contract.states import TaskState as S
from controlplane.domain.rollup import GroupTally, JobTally, job_state
from controlplane.domain.states import ACTIVE, OPEN, TERMINAL, Budget
from controlplane.domain.transitions import TRANSITIONS, Counters, Event, Limits, advance

limits = st.builds(Limits, st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))


@given(limits, st.lists(st.tuples(st.sampled_from(list(Event)), st.floats(0, 200)), max_size=60))
def test_any_history_keeps_the_books(limit: Limits, events: list[tuple[Event, float]]) -> None:
    state, counters = S.PENDING, Counters()
    charged: Counter[Budget] = Counter()
    for event, ran in events:
        if (state, event) not in TRANSITIONS:
            continue
        outcome = advance(state, event, counters=counters, limits=limit, ran_seconds=ran)
        for old, new in (
            (counters.failure, outcome.counters.failure),
            (counters.preemption, outcome.counters.preemption),
            (counters.system, outcome.counters.system),
        ):
            assert old <= new <= old + 1
        if outcome.charged:
            charged[outcome.charged] += 1
        state, counters = outcome.task, outcome.counters
        assert (outcome.attempt in TERMINAL) or state in ACTIVE or outcome.attempt is None
    assert charged[Budget.FAILURE] == counters.failure <= limit.failure + 1
    assert charged[Budget.PREEMPTION] == counters.preemption <= limit.preemption + 1
    assert charged[Budget.SYSTEM] == counters.system


states = st.sampled_from(list(S))
groups = st.lists(
    st.tuples(st.lists(states, min_size=1, max_size=5), st.booleans(), st.integers(0, 5)),
    min_size=1,
    max_size=3,
)


def tally_of(
    drawn: list[tuple[list[S], bool, int]], tolerated: int, started: bool
) -> tuple[JobTally, list[S]]:
    tallies = tuple(
        GroupTally(
            Counter(found),
            min(minimum, len(found)) if explicit else len(found),
            explicit_minimum=explicit,
        )
        for found, explicit, minimum in drawn
    )
    everything = [state for found, _, _ in drawn for state in found]
    minimum = sum(item.min_available for item in tallies)
    return JobTally(tallies, minimum, tolerated, False, started), everything


def plainly(job: JobTally, everything: list[S]) -> S:
    """The rules of the rollup once more, written down from their text."""
    counts = Counter(everything)
    if counts[S.SUCCEEDED] == len(everything):
        return S.SUCCEEDED
    if counts[S.FAILED] > job.max_task_failures:
        return S.FAILED
    for state in (S.UNSCHEDULABLE, S.KILLED):
        if counts[state]:
            return state
    if not any(state in OPEN for state in everything):
        explicit = [group for group in job.groups if group.explicit_minimum]
        met = all(group.counts.get(S.SUCCEEDED, 0) >= group.min_available for group in explicit)
        if explicit and met and counts[S.SUCCEEDED] >= job.min_available:
            return S.SUCCEEDED
        if counts[S.WORKER_FAILED] + counts[S.PREEMPTED]:
            return S.WORKER_FAILED
        return S.SUCCEEDED if not explicit and counts[S.SUCCEEDED] else S.FAILED
    if job.ever_started or any(state in ACTIVE for state in everything):
        return S.RUNNING
    return S.PENDING


@given(groups, st.integers(0, 4), st.booleans())
def test_the_rollup_is_total_and_agrees_with_its_text(
    drawn: list[tuple[list[S], bool, int]], tolerated: int, started: bool
) -> None:
    job, everything = tally_of(drawn, tolerated, started)
    assert job_state(job) is plainly(job, everything)


@given(groups, st.integers(0, 4), st.booleans(), st.randoms())
def test_the_rollup_does_not_depend_on_order(drawn, tolerated, started, random) -> None:  # type: ignore[no-untyped-def]
    before = job_state(tally_of(drawn, tolerated, started)[0])
    shuffled = [(random.sample(found, len(found)), *rest) for found, *rest in drawn]
    random.shuffle(shuffled)
    assert job_state(tally_of(shuffled, tolerated, started)[0]) is before
