"""Why a task waits: what is nearest to the task comes first."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from controlplane.contract.states import TaskState
from controlplane.domain.placement.reasons.pending import (
    CacheWait,
    PendingTaskFacts,
    pending_reasons,
    whereabouts,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
FOUND = {"code": "insufficient_resources", "text": "no cell has enough free capacity", "cell": "c"}
ALL = PendingTaskFacts(
    not_before=LATER,
    attempt_open=True,
    startable_at=None,
    depends_on=[{"group": "a", "until": "succeeded"}, {"group": "b", "until": "started"}],
    found=FOUND,
)


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({}, "backing_off", "waits until 2030-01-01T00:01:00.000+00:00 before"),
        ({"not_before": NOW}, "waiting_for_previous_attempt", "its previous attempt"),
        (
            {"not_before": None, "attempt_open": False},
            "waiting_for_dependency",
            "group a has succeeded and group b has started",
        ),
        (
            {
                "not_before": None,
                "attempt_open": False,
                "waits_for": [{"job": 7, "name": "prepare", "until": "finished"}],
            },
            "waiting_for_job",
            "waits until job prepare has finished",
        ),
        (
            {
                "not_before": None,
                "attempt_open": False,
                "startable_at": NOW,
                "is_requeuing": True,
            },
            "waiting_for_gang_to_leave",
            "the other members of its gang",
        ),
        (
            {"not_before": None, "attempt_open": False, "startable_at": LATER},
            "waiting_for_start_time",
            "not start before 2030-01-01T00:01",
        ),
        (
            {"not_before": None, "attempt_open": False, "startable_at": NOW},
            "insufficient_resources",
            "no cell has enough free capacity",
        ),
        (
            {"not_before": None, "attempt_open": False, "startable_at": NOW, "found": None},
            "queue_position",
            "no placement pass has considered it yet",
        ),
    ],
)
def test_first_applicable_reason_is_reported(
    changes: dict[str, object], code: str, text: str
) -> None:
    reason = pending_reasons(replace(ALL, **changes), now=NOW)[0]  # type: ignore[arg-type]
    assert reason["code"] == code
    assert text in reason["text"]


def test_figures_of_the_placement_reason_are_kept() -> None:
    waiting = PendingTaskFacts(None, False, NOW, [], FOUND)
    assert pending_reasons(waiting, now=NOW)[0] == FOUND


def test_reason_has_the_figures_of_the_awaited_groups_and_jobs() -> None:
    waiting = replace(ALL, not_before=None, attempt_open=False)
    assert pending_reasons(waiting, now=NOW)[0] == {
        "code": "waiting_for_dependency",
        "text": "waits until group a has succeeded and group b has started",
        "groups": ["a", "b"],
    }
    prepare = {"job": 7, "name": "prepare", "until": "finished"}
    assert pending_reasons(replace(waiting, waits_for=[prepare]), now=NOW)[0] == {
        "code": "waiting_for_job",
        "text": "waits until job prepare has finished",
        "jobs": [{"job": 7, "until": "finished"}],
    }
    soon = pending_reasons(replace(waiting, startable_at=LATER), now=NOW)[0]
    assert soon["until"] == "2030-01-01T00:01:00.000+00:00"
    assert soon["text"] == "must not start before 2030-01-01T00:01:00.000+00:00"
    assert pending_reasons(ALL, now=NOW)[0]["until"] == "2030-01-01T00:01:00.000+00:00"


def test_all_reasons_are_listed_in_order_of_precedence() -> None:
    everything = replace(
        ALL,
        waits_for=[{"job": 7, "name": "prepare", "until": "finished"}],
        is_requeuing=True,
        start_after=LATER,
    )
    assert [reason["code"] for reason in pending_reasons(everything, now=NOW)] == [
        "backing_off",
        "waiting_for_previous_attempt",
        "waiting_for_job",
        "waiting_for_dependency",
        "waiting_for_gang_to_leave",
        "waiting_for_start_time",
        "insufficient_resources",
    ]


def test_group_that_waits_only_for_jobs_has_one_reason() -> None:
    prepare = {"job": 7, "name": "prepare", "until": "finished"}
    waiting = PendingTaskFacts(None, False, None, [], None, [prepare])
    assert [reason["code"] for reason in pending_reasons(waiting, now=NOW)] == ["waiting_for_job"]


@pytest.mark.parametrize(
    ("state", "failure", "text"),
    [
        (TaskState.RUNNING, "", "is RUNNING on cell cell-1"),
        (TaskState.SUCCEEDED, "", "ended SUCCEEDED"),
        (TaskState.FAILED, "exit status 1", "exit status 1"),
    ],
)
def test_reason_of_other_tasks_is_their_cell_or_their_failure(
    state: TaskState, failure: str, text: str
) -> None:
    found = whereabouts(state, cell="cell-1", failure_reason=failure)
    assert found == {"code": state.name.lower(), "text": text, "cell": "cell-1"}


def test_reason_of_a_hit_names_the_origin_of_its_result() -> None:
    origin = {"job": 12, "task": 40}
    found = whereabouts(TaskState.SUCCEEDED, cell=None, failure_reason="", origin=origin)
    assert found["text"] == "ended SUCCEEDED with the result of job 12, task 40"


@pytest.mark.parametrize(
    ("wait", "text"),
    [
        (CacheWait(is_lookup=True), "its result is being looked up in the cache"),
        (CacheWait(is_lookup=False), "waits for an identical task"),
        (
            CacheWait(is_lookup=False, job_id=7, since=NOW),
            "waits for the result of an identical task of job 7, since "
            + NOW.isoformat(timespec="milliseconds"),
        ),
    ],
)
def test_task_waits_for_the_cache_before_its_place_in_the_queue(wait: CacheWait, text: str) -> None:
    task = PendingTaskFacts(None, False, NOW, [], FOUND, cache=wait)
    reasons = pending_reasons(task, now=NOW)
    assert [(reason["code"], reason["text"]) for reason in reasons] == [("waiting_for_cache", text)]
