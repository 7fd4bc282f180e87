"""Properties of the timeline: nothing is lost, order is kept, stays add up to the lifetime."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.states import Reason
from controlplane.domain.timeline import Change, first_entries, measure

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
# What may follow in the life of a task; most of it leads back to waiting.
MOVES: dict[S, list[tuple[S, Reason]]] = {
    S.PENDING: [(S.ASSIGNED, Reason.PLACED)] * 5 + [(S.KILLED, Reason.CANCELLED)],
    S.ASSIGNED: [
        (S.PENDING, Reason.REFUSED),
        (S.RUNNING, Reason.STARTED),
        (S.ASSIGNED, Reason.BUILDING),
    ],
    S.RUNNING: [
        (S.PENDING, Reason.CELL_LOST),
        (S.PENDING, Reason.DRAINED),
        (S.SUCCEEDED, Reason.SUCCEEDED),
    ],
}


@st.composite
def histories(draw: st.DrawFn, tasks: int = 4) -> list[Change]:
    """Newest first: some tasks that live by the table, often in rounds, and their job."""
    states: dict[int | None, S] = {}
    made: list[Change] = []
    at = NOON
    stretch = st.lists(st.tuples(st.integers(0, tasks), st.integers(0, 50)), max_size=5)
    stretches = draw(st.lists(st.tuples(stretch, st.integers(1, 6)), max_size=8))
    for number, choice in [step for steps, times in stretches for step in steps * times]:
        at += timedelta(seconds=draw(st.sampled_from([0, 0, 0.25, 0.5, 2, 100])))
        task = number or None
        before = states.get(task, S.PENDING)
        if task is None:
            after, reason = draw(st.sampled_from(sorted(S))), Reason.TASKS_DECIDED
        elif before in MOVES:
            after, reason = MOVES[before][choice % len(MOVES[before])]
        else:
            continue
        delay = timedelta(seconds=draw(st.sampled_from([0, 0, 0, 1, 30])))
        states[task] = after
        made.append(
            Change(
                id=len(made) + 1,
                job_id=1,
                task_id=task,
                task_name=None,
                attempt_uid=None,
                attempt_number=None,
                cell=None,
                from_state=before,
                to_state=after,
                attempt_state=None,
                reason=reason.value,
                message=draw(st.sampled_from(["", "a"])),
                actor="cell",
                at=max(NOON, at - delay),
            )
        )
    return made[::-1]


@given(histories())
def test_every_change_is_in_exactly_one_entry(changes: list[Change]) -> None:
    entries = first_entries(measure(changes), 1_000)
    assert sum(entry.count for entry in entries) == len(changes)
    ids = sorted(change.id for entry in entries for change in entry.changes)
    assert ids == sorted(change.id for change in changes)


@given(histories())
def test_entry_has_one_kind_of_change_newest_first(changes: list[Change]) -> None:
    for entry in first_entries(measure(changes), 1_000):
        kinds = {
            (c.from_state, c.to_state, c.reason, c.actor, c.task_id is None) for c in entry.changes
        }
        assert len(kinds) == 1
        ids = [change.id for change in entry.changes]
        assert ids == sorted(ids, reverse=True)
        assert entry.first_at == min(change.at for change in entry.changes)


@given(histories())
def test_changes_of_a_task_stay_in_order(changes: list[Change]) -> None:
    """Round by round: an entry that has several changes of a task repeats with its neighbours."""
    entries = first_entries(measure(changes), 1_000)
    places: dict[int | None, list[tuple[int, int]]] = defaultdict(list)
    for place, entry in enumerate(entries):
        for change in entry.changes:
            places[change.task_id].append((change.id, place))
    for found in places.values():
        found.sort(reverse=True)
        for (_, newer), (_, older) in pairwise(found):
            # Back to the beginning of a round: then all entries between them are of that round.
            if older < newer:
                assert all(entry.count > 1 for entry in entries[older : newer + 1])


@given(histories(), st.integers(1, 12))
def test_pages_of_any_size_have_every_change_once(changes: list[Change], limit: int) -> None:
    measured, rest, seen = measure(changes), measure(changes), []
    while rest:
        page = first_entries(rest, limit)
        assert 1 <= len(page) <= limit
        ids = {change.id for entry in page for change in entry.changes}
        # A page is what is newest, without a gap: so its oldest is where the next one goes on.
        assert ids == {change.id for change in rest[: len(ids)]}
        seen += sorted(ids, reverse=True)
        rest = rest[len(ids) :]
    assert seen == [change.id for change in measured]


@given(histories())
def test_stays_add_up_to_the_lifetime(changes: list[Change]) -> None:
    by_task: dict[int | None, list[Change]] = defaultdict(list)
    for change in measure(changes):
        assert change.seconds is None or change.seconds >= 0
        if change.enters:
            by_task[change.task_id].append(change)
    for found in by_task.values():
        assert found[0].seconds is None
        stays = [change.seconds for change in found[1:]]
        assert None not in stays
        earliest = min(change.at for change in found)
        lifetime = (found[0].at - earliest).total_seconds()
        assert abs(sum(stay or 0 for stay in stays) - lifetime) < 1e-6
    merged = first_entries(measure(changes), 1_000)
    known = sum(change.seconds or 0 for change in measure(changes))
    assert abs(sum(entry.seconds or 0 for entry in merged) - known) < 1e-6


@given(histories(), st.integers(0, 60))
def test_later_page_is_measured_like_one_page(changes: list[Change], cut: int) -> None:
    newer, older = changes[:cut], changes[cut:]
    left: dict[int | None, datetime] = {}
    for change in newer:
        if change.enters:
            left[change.task_id] = min(change.at, left.get(change.task_id, change.at))
    carried: dict[int | None, datetime] = {}
    whole = measure(newer, carried)
    assert carried == left
    assert whole + measure(older, left) == measure(changes)


@given(histories(tasks=1))
def test_number_of_rounds_is_preserved(changes: list[Change]) -> None:
    """Unfolded turn by turn, the entries of a task are its changes in their order."""
    measured = [change for change in measure(changes) if change.task_id is not None]
    entries = first_entries(measured, 1_000)
    unfolded: list[int] = []
    while entries:
        turns = [change.id for change in entries[0].changes]
        # The entries of a round are those that begin before its second turn does.
        second = turns[1] if len(turns) > 1 else turns[0]
        length = max(1, sum(entry.newest.id > second for entry in entries))
        block, entries = entries[:length], entries[length:]
        for turn in range(len(turns)):
            unfolded += [entry.changes[turn].id for entry in block]
    assert unfolded == [change.id for change in measured]
