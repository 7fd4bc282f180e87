"""The timeline of histories as they come: retries, refusals, crowds of tasks, late reports."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.states import Reason
from controlplane.domain.timeline import Change, TimelineEntry, first_entries, measure

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
ALL = 1_000


class History:
    """Written oldest first, read newest first."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def add(
        self,
        task: int | None,
        after: float,
        move: tuple[S | None, S],
        reason: Reason,
        **facts: Any,
    ) -> None:
        fields: dict[str, Any] = {
            "id": len(self.changes) + 1,
            "job_id": 1,
            "task_id": task,
            "task_name": None if task is None else f"main.{task}",
            "attempt_uid": None,
            "attempt_number": None,
            "cell": None,
            "from_state": move[0],
            "to_state": move[1],
            "attempt_state": None,
            "reason": reason.value,
            "message": "",
            "actor": "placement",
            "at": NOON + timedelta(seconds=after),
        }
        self.changes.append(Change(**fields | facts))

    def read(self) -> list[Change]:
        return measure(reversed(self.changes))

    def entries(self, limit: int = ALL) -> list[TimelineEntry]:
        return first_entries(self.read(), limit)

    def summary(self, limit: int = ALL) -> list[tuple[str, int]]:
        return [(entry.newest.reason, entry.count) for entry in self.entries(limit)]


PLACED = (S.PENDING, S.ASSIGNED)


def refuse(history: History, task: int, times: int, start: float = 0.0, every: float = 10) -> None:
    for turn in range(times):
        at = start + every * turn
        history.add(task, at, PLACED, Reason.PLACED, cell=f"cell-{turn % 5}")
        back = {"message": f"disk {turn}", "actor": "cell", "cell": f"cell-{turn % 5}"}
        history.add(task, at + 1, (S.ASSIGNED, S.PENDING), Reason.REFUSED, **back)


def test_repeated_refusals_collapse_into_two_entries() -> None:
    history = History()
    history.add(1, -5, (None, S.PENDING), Reason.SUBMITTED, actor="ann")
    refuse(history, 1, 7)
    history.add(1, 70, PLACED, Reason.PLACED, cell="cell-9")
    history.add(1, 71, (S.ASSIGNED, S.RUNNING), Reason.STARTED, actor="cell", cell="cell-9")
    assert history.summary() == [
        ("started", 1),
        ("placed", 1),
        ("refused", 7),
        ("placed", 7),
        ("submitted", 1),
    ]
    refused, placed = history.entries()[2:4]
    assert (refused.first_at, refused.last_at) == (
        NOON + timedelta(seconds=1),
        NOON + timedelta(seconds=61),
    )
    assert (refused.seconds, refused.longest_seconds, refused.still) == (7 * 9.0, 9.0, 0)
    assert (placed.seconds, placed.tasks) == (7.0, 1)
    assert refused.message == "disk 6; disk 5; disk 4; …"
    assert refused.shown_actor == "cell-1, cell-0, cell-4, …"
    assert refused.shared(lambda change: change.cell) is None
    assert refused.shared(lambda change: change.task_id) == 1


def test_two_rounds_are_not_merged() -> None:
    history = History()
    refuse(history, 1, 2)
    assert history.summary() == [("refused", 1), ("placed", 1), ("refused", 1), ("placed", 1)]


def test_same_consecutive_step_of_two_tasks_is_one_entry() -> None:
    history = History()
    for task, at in ((1, 0), (2, 60)):
        history.add(task, at, (S.ASSIGNED, S.RUNNING), Reason.STARTED)
    assert history.summary() == [("started", 2)]


def test_rounds_with_different_ends_are_not_merged() -> None:
    history = History()
    for turn in range(6):
        history.add(1, turn, PLACED, Reason.PLACED)
        why = Reason.REFUSED if turn % 2 else Reason.START_EXPIRED
        history.add(1, turn + 0.5, (S.ASSIGNED, S.PENDING), why)
    assert history.summary() == [
        ("refused", 3),
        ("placed", 3),
        ("start_expired", 3),
        ("placed", 3),
    ]
    history.add(1, 9, PLACED, Reason.PLACED)
    history.add(1, 9.5, (S.ASSIGNED, S.PENDING), Reason.REFUSED)
    assert history.summary()[:2] == [("refused", 1), ("placed", 1)]


def test_a_thousand_tasks_placed_at_once_are_one_entry() -> None:
    history = History()
    history.add(None, 0, (None, S.PENDING), Reason.SUBMITTED, actor="ann")
    for task in range(1_000):
        history.add(task, 1, PLACED, Reason.PLACED, cell=f"cell-{task % 3}")
    history.add(None, 1, (S.PENDING, S.RUNNING), Reason.TASKS_DECIDED)
    entries = history.entries()
    assert [entry.count for entry in entries] == [1, 1_000, 1]
    assert (entries[1].tasks, entries[1].still, entries[1].seconds) == (1_000, 1_000, None)
    assert entries[1].shared(lambda change: change.task_name) is None
    assert entries[0].tasks == entries[2].tasks == 0


def test_batch_of_reports_is_grouped_by_reason() -> None:
    history = History()
    for task in range(50):
        history.add(task, 3, (S.ASSIGNED, S.RUNNING), Reason.STARTED, actor="cell")
        good = task % 3
        move = (S.RUNNING, S.SUCCEEDED if good else S.FAILED)
        why = Reason.SUCCEEDED if good else Reason.EXIT_STATUS
        history.add(task, 3.5, move, why, actor="cell")
    # Newest first, the first start was read before the first failure: it stays behind none.
    assert sorted(history.summary()) == [
        ("exit_status", 17),
        ("started", 1),
        ("started", 49),
        ("succeeded", 33),
    ]


def test_changes_apart_in_time_or_across_a_job_change_are_not_merged() -> None:
    history = History()
    history.add(1, 0, PLACED, Reason.PLACED)
    history.add(None, 0, (S.PENDING, S.RUNNING), Reason.TASKS_DECIDED)
    history.add(2, 0, PLACED, Reason.PLACED)
    history.add(1, 0.5, (S.ASSIGNED, S.RUNNING), Reason.STARTED)
    history.add(3, 5, PLACED, Reason.PLACED)
    assert history.summary() == [
        ("placed", 1),
        ("started", 1),
        ("placed", 1),
        ("tasks_decided", 1),
        ("placed", 1),
    ]


@pytest.mark.parametrize(("apart", "count"), [(1.0, 2), (1.001, 3), (0.5, 2)])
def test_changes_up_to_one_second_apart_are_merged(apart: float, count: int) -> None:
    history = History()
    history.add(1, 0, PLACED, Reason.PLACED)
    history.add(9, 0, (S.ASSIGNED, S.RUNNING), Reason.STARTED)
    history.add(2, apart, PLACED, Reason.PLACED)
    assert len(history.summary()) == count


def test_merge_window_is_measured_from_the_newest_change() -> None:
    history = History()
    history.add(1, 0, PLACED, Reason.PLACED)
    history.add(9, 0.4, (S.ASSIGNED, S.RUNNING), Reason.STARTED)
    history.add(2, 0.8, PLACED, Reason.PLACED)
    history.add(3, 1.6, PLACED, Reason.PLACED)
    assert history.summary() == [("placed", 2), ("started", 1), ("placed", 1)]


@pytest.mark.parametrize(("phases", "count"), [(12, 14), (13, 45)])
def test_a_round_has_fourteen_steps_at_most(phases: int, count: int) -> None:
    history = History()
    for turn in range(3):
        at = turn * 100
        history.add(1, at, PLACED, Reason.PLACED)
        for phase in range(phases):
            stays = (S.BUILDING, S.BUILDING)
            history.add(1, at + phase, stays, Reason.BUILDING, message=f"phase {phase}")
        history.add(1, at + 50, (S.BUILDING, S.PENDING), Reason.CELL_LOST)
    assert len(history.summary()) == count


def test_building_phases_are_separate_entries() -> None:
    history = History()
    origin = {"actor": "cell", "cell": "cell-1"}
    history.add(1, 0, (S.ASSIGNED, S.BUILDING), Reason.BUILDING, message="pulling", **origin)
    for at, phase in enumerate(("preparing", "creating")):
        stays = (S.BUILDING, S.BUILDING)
        history.add(1, 1 + at, stays, Reason.BUILDING, message=phase, **origin)
    history.add(1, 4, (S.BUILDING, S.RUNNING), Reason.STARTED, **origin)
    entries = history.entries()
    assert [entry.message for entry in entries] == ["", "creating", "preparing", "pulling"]
    assert [entry.seconds for entry in entries] == [None, None, None, 4.0]
    assert [entry.still for entry in entries] == [1, 0, 0, 0]


def test_late_reported_start_shortens_the_previous_step() -> None:
    history = History()
    history.add(1, 0, PLACED, Reason.PLACED)
    history.add(1, 5, (S.ASSIGNED, S.BUILDING), Reason.BUILDING)
    history.add(1, 3, (S.BUILDING, S.RUNNING), Reason.STARTED)
    history.add(1, 9, (S.RUNNING, S.SUCCEEDED), Reason.SUCCEEDED)
    assert [change.seconds for change in history.read()] == [None, 6.0, 0.0, 3.0]


def test_later_page_measures_its_newest_state_from_the_page_before() -> None:
    history = History()
    history.add(1, 0, PLACED, Reason.PLACED)
    history.add(None, 0, (S.PENDING, S.RUNNING), Reason.TASKS_DECIDED)
    left = {1: NOON + timedelta(seconds=7), None: NOON + timedelta(seconds=9)}
    found = measure(reversed(history.changes), left)
    assert [change.seconds for change in found] == [9.0, 7.0]


def test_page_ends_at_an_entry_boundary() -> None:
    history = History()
    for task in range(4):
        history.add(task, 0, PLACED, Reason.PLACED)
        history.add(task, 0.1, (S.ASSIGNED, S.RUNNING), Reason.STARTED)
    (page,) = history.entries(limit=1)
    assert (page.newest.reason, [change.id for change in page.changes]) == ("started", [8])
    assert history.summary(limit=2) == [("started", 4), ("placed", 4)]


def test_rounds_that_exceed_the_page_start_the_next_one() -> None:
    history = History()
    history.add(1, -5, (None, S.PENDING), Reason.SUBMITTED, actor="ann")
    refuse(history, 1, 5)
    history.add(1, 90, PLACED, Reason.PLACED)
    assert history.summary(limit=2) == [("placed", 1)]
    assert history.summary(limit=3) == [("placed", 1), ("refused", 5), ("placed", 5)]
    # Where not even one round fits into a page, its changes are shown one by one.
    assert history.summary(limit=1) == [("placed", 1)]
    assert first_entries(history.read()[1:], 1)[0].count == 1


@pytest.mark.parametrize(
    ("actor", "cell", "kind", "shown"),
    [
        ("cell", "cell-7", "cell", "cell-7"),
        ("cell", None, "cell", "cell"),
        ("placement", "cell-7", "control_plane", "placement"),
        ("convergence", None, "control_plane", "convergence"),
        ("submission", None, "control_plane", "submission"),
        ("recount", None, "control_plane", "recount"),
        ("ann", "cell-7", "user", "ann"),
    ],
)
def test_an_actor_is_a_cell_a_part_of_the_control_plane_or_a_user(
    actor: str, cell: str | None, kind: str, shown: str
) -> None:
    history = History()
    uid = UUID(int=1)
    history.add(1, 0, PLACED, Reason.PLACED, actor=actor, cell=cell, attempt_uid=uid)
    (change,) = history.changes
    assert (change.actor_kind, change.shown_actor) == (kind, shown)
    assert change.sentence == "placed on a cell"


def test_unknown_reason_is_shown_as_its_code() -> None:
    history = History()
    history.add(1, 0, PLACED, Reason.PLACED)
    assert history.changes[0]._replace(reason="older_code").sentence == "older_code"


def test_change_without_a_target_state_enters_no_state() -> None:
    history = History()
    history.add(1, 0, PLACED, Reason.RELEASED, to_state=None)
    (change,) = history.read()
    assert not change.enters
    (entry,) = history.entries()
    assert (entry.seconds, entry.longest_seconds, entry.still) == (None, None, 0)


def test_entry_has_the_longest_stay() -> None:
    history = History()
    for task, left in ((1, 3), (2, 9), (3, 4)):
        history.add(task, 0, PLACED, Reason.PLACED)
        history.changes[-1] = history.changes[-1]._replace(seconds=float(left))
    (entry,) = first_entries(history.changes[::-1], ALL)
    assert (entry.seconds, entry.longest_seconds) == (16.0, 9.0)
