"""The history over HTTP: actor, reason and duration; merged or row by row; complete pages."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane import clock
from controlplane.api import schemas
from controlplane.contract.states import TaskState as S
from controlplane.models import Cell, Task, Transition
from controlplane.queries.views import history
from tests.integration.api.conftest import Caller
from tests.integration.api.test_reading import pages, place, submit


def add(
    task: Task,
    move: tuple[S, S],
    reason: str,
    at: datetime,
    actor: str = "placement",
    **facts: Any,
) -> None:
    """A row of the task's history."""
    Transition.objects.create(
        job_id=task.job_id,
        task_id=task.pk,
        from_state=move[0],
        to_state=move[1],
        reason=reason,
        actor=actor,
        at=at,
        **facts,
    )


def refuse(task: Task, cell: Cell, times: int, start: datetime) -> list[Any]:
    """The task is placed and refused so often, a second each, every ten; its attempts."""
    tried = []
    for turn in range(times):
        at = start + timedelta(seconds=10 * turn)
        attempt = place(
            task,
            cell,
            state=S.WORKER_FAILED,
            finished_at=at,
            released_at=at,
            release_kind="confirmed",
        )
        Task.objects.filter(pk=task.pk).update(state=S.PENDING, finished_at=None)
        uid = attempt.uid
        add(task, (S.PENDING, S.ASSIGNED), "placed", at, attempt_uid=uid, attempt_state=S.ASSIGNED)
        add(
            task,
            (S.ASSIGNED, S.PENDING),
            "refused",
            at + timedelta(seconds=1),
            "cell",
            attempt_uid=uid,
            attempt_state=S.WORKER_FAILED,
            message="disk full",
        )
        tried.append(attempt)
    return tried


@pytest.fixture
def refused(submitter: Caller, make_cell: Callable[..., Cell]) -> Task:
    """A task that was refused seven times."""
    submit(submitter)
    task = Task.objects.get()
    submitted = Transition.objects.get(job_id=task.job_id)
    refuse(task, make_cell(), 7, submitted.at + timedelta(seconds=3))
    return task


def test_repeated_changes_are_merged_with_count_duration_and_cell(
    submitter: Caller, refused: Task
) -> None:
    found = submitter.get(f"/tasks/{refused.pk}/history").json["results"]
    assert [(item["reason"], item["count"]) for item in found] == [
        ("refused", 7),
        ("placed", 7),
        ("submitted", 1),
    ]
    latest, placed, submitted = found
    assert latest["text"] == "the cell refused it"
    assert (latest["message"], latest["actor"], latest["actor_kind"]) == (
        "disk full",
        "cell-1",
        "cell",
    )
    assert (latest["seconds"], latest["longest_seconds"], latest["still"]) == (6 * 9.0, 9.0, 1)
    assert (latest["task_name"], latest["cell_id"]) == ("main.0", "cell-1")
    assert (latest["attempt_uid"], latest["attempt_number"]) == (None, None)
    assert latest["at"] == latest["last_at"] > latest["first_at"]
    assert (placed["actor"], placed["actor_kind"], placed["seconds"]) == (
        "placement",
        "control_plane",
        7.0,
    )
    assert (submitted["task"], submitted["actor"]) == (refused.pk, "ann")
    assert (submitted["actor_kind"], submitted["seconds"]) == ("user", 3.0)
    for item in found:
        schemas.Change.model_validate(item)


def test_unmerged_history_returns_every_row(submitter: Caller, refused: Task) -> None:
    found = submitter.get(f"/tasks/{refused.pk}/history?merged=false").json["results"]
    assert len(found) == 15
    assert {item["count"] for item in found} == {1}
    assert [item["attempt_number"] for item in found[:3]] == [7, 7, 6]
    assert [item["seconds"] for item in found[:3]] == [None, 1.0, 9.0]
    assert sum(item["seconds"] or 0 for item in found) == 3.0 + 6 * 10 + 1
    assert submitter.get(f"/tasks/{refused.pk}/history?merged=perhaps").status == 400


@pytest.mark.parametrize("merged", ["true", "false"])
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 100])
def test_pages_hold_every_row_once_whatever_their_size(
    submitter: Caller, refused: Task, limit: int, merged: str
) -> None:
    for path in (f"/tasks/{refused.pk}/history", f"/jobs/{refused.job_id}/history"):
        found = pages(submitter, f"{path}?limit={limit}&merged={merged}")
        assert all(1 <= len(page) <= limit for page in found)
        entries = [item for page in found for item in page]
        assert sum(item["count"] for item in entries) == 15
        assert sum(item["seconds"] or 0 for item in entries) == 3.0 * ("tasks" in path) + 61.0
        assert [item["id"] for item in entries] == sorted(
            (item["id"] for item in entries), reverse=True
        )


def test_rows_added_while_paging_are_on_no_later_page(submitter: Caller, refused: Task) -> None:
    first = submitter.get(f"/tasks/{refused.pk}/history?limit=2").json
    add(refused, (S.PENDING, S.KILLED), "cancelled", clock.now(), "ann")
    second = submitter.get(first["next"]).json
    assert [item["reason"] for item in second["results"]] == ["submitted"]
    assert second["next"] is None


def test_attempt_history_is_the_attempts_part_of_the_task_history(
    submitter: Caller, refused: Task
) -> None:
    add(refused, (S.PENDING, S.KILLED), "cancelled", clock.now() + timedelta(hours=1), "ann")
    of_task = submitter.get(f"/tasks/{refused.pk}/history?merged=false").json["results"]
    for uid in {item["attempt_uid"] for item in of_task} - {None}:
        found = submitter.get(f"/attempts/{uid}/history").json
        assert found["results"] == [item for item in of_task if item["attempt_uid"] == uid]
        assert found["next"] is None
        one = pages(submitter, f"/attempts/{uid}/history?limit=1")
        assert [item for page in one for item in page] == found["results"]


def test_tasks_placed_together_are_one_entry_of_the_job_history(
    submitter: Caller, make_cell: Callable[..., Cell]
) -> None:
    job_id = submit(submitter, replicas=1_200)
    make_cell()
    now = clock.now()
    tasks = list(Task.objects.order_by("id"))
    Transition.objects.bulk_create(
        Transition(
            job_id=job_id,
            task_id=task.pk,
            from_state=S.PENDING,
            to_state=S.ASSIGNED,
            reason="placed",
            actor="placement",
            at=now,
        )
        for task in tasks
    )
    with CaptureQueriesContext(connection) as caught:
        found = submitter.get(f"/jobs/{job_id}/history").json["results"]
    assert len(caught.captured_queries) <= 7
    assert [(item["count"], item["tasks"], item["task"]) for item in found] == [
        (1_200, 1_200, None),
        (1, 0, None),
    ]
    assert found[0]["still"] == 1_200
    one_by_one = pages(submitter, f"/jobs/{job_id}/history?merged=false&limit=1000")
    assert [len(page) for page in one_by_one] == [1_000, 201]
    assert {item["seconds"] for item in one_by_one[1][:-1]} == {None}


def test_page_is_cut_short_when_the_row_limit_is_reached(
    submitter: Caller, refused: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_FIRST_READ", 2)
    monkeypatch.setattr(history, "_MOST_READ", 6)
    found = pages(submitter, f"/tasks/{refused.pk}/history")
    assert len(found) > 1
    assert sum(item["count"] for page in found for item in page) == 15


def test_history_of_a_cancelled_job_is_complete(submitter: Caller) -> None:
    job_id = submit(submitter)
    task = Task.objects.get()
    submitter.post(f"/jobs/{job_id}/cancel", {"reason": "enough"})
    of_job = submitter.get(f"/jobs/{job_id}/history").json["results"]
    assert [(item["to_state"], item["actor"], item["tasks"]) for item in of_job] == [
        ("KILLED", "ann", 0),
        ("KILLED", "ann", 1),
        ("PENDING", "ann", 0),
    ]
    of_task = submitter.get(f"/tasks/{task.pk}/history").json["results"]
    assert [item["to_state"] for item in of_task] == ["KILLED", "PENDING"]
    assert of_task[1]["seconds"] > 0
    assert of_task[0]["still"] == 1


@pytest.mark.parametrize(
    "path", ["/jobs/4711", "/tasks/4711", "/attempts/01890a5d-ac96-774b-bcce-b302099a8057"]
)
def test_history_of_an_unknown_object_is_not_found(submitter: Caller, path: str) -> None:
    assert submitter.get(f"{path}/history").status == 404


def test_a_wrong_cursor_is_refused(submitter: Caller, refused: Task) -> None:
    for cursor in ("x", "LTE", "eA"):
        answer = submitter.get(f"/tasks/{refused.pk}/history?cursor={cursor}")
        assert (answer.status, set(answer.faults)) == (400, {"cursor"})
    assert submitter.get(f"/tasks/{refused.pk}/history?cursor=MA").json["results"] == []
