"""Lists for programs: many ids at once, changes since a time, and selected fields."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.contract.states import TaskState
from controlplane.models import Cell, Job, Task, Transition
from controlplane.queries import history_ranges
from tests.integration.api.conftest import Caller, make_caller
from tests.integration.api.test_reading import pages, place, submit

NOON = datetime(2031, 5, 4, 12, tzinfo=UTC)


def ids(caller: Caller, query: str) -> list[int]:
    answer = caller.get(f"/jobs?{query}")
    assert answer.status == 200, answer.json
    return [job["id"] for job in answer.json["results"]]


def test_a_thousand_ids_are_one_request(submitter: Caller) -> None:
    first, _, third = (submit(submitter) for _ in range(3))
    unknown = ",".join(str(10**17 + n) for n in range(998))
    assert ids(submitter, f"id={first},{third},{unknown}") == [third, first]
    assert ids(submitter, f"id={first}&id={third}") == [third, first]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("id=1,x7", "must be ids, separated by commas: 'x7' is none"),
        ("id=0", "must be ids, separated by commas: '0' is none"),
        ("id=1,", "must be ids, separated by commas: '' is none"),
        ("id=" + ",".join("1" * 1001), "must have at most 1000 ids, not 1001"),
    ],
)
def test_bad_ids_are_refused_with_the_first_of_them(
    submitter: Caller, query: str, text: str
) -> None:
    for path, name in (("/jobs", "id"), ("/tasks", "job")):
        refused = submitter.get(f"{path}?{name}{query.removeprefix('id')}")
        assert (refused.status, refused.faults) == (422, {name: text})


@pytest.mark.parametrize("query", ["", "?follow=false&since=2031-05-04T12:00:00Z"])
def test_stream_that_was_refused_a_moment_ago_has_no_position(
    submitter: Caller, query: str
) -> None:
    """A change may be missing before a position that no stream has settled."""
    answer = submitter.get(f"/events{query}")
    assert (answer.status, answer.headers["Retry-After"]) == (429, "1")


def test_fields_select_what_a_list_shows(submitter: Caller) -> None:
    job = submit(submitter, name="sweep", replicas=2)
    assert submitter.get("/jobs?fields=name,id").json["results"] == [{"name": "sweep", "id": job}]
    expected = [{"index": 0, "state": "PENDING"}, {"index": 1, "state": "PENDING"}]
    for path in (f"/jobs/{job}/tasks?fields=index,state", f"/tasks?job={job}&fields=index,state"):
        assert submitter.get(path).json["results"] == expected
    assert submitter.get("/tasks?fields=index").json["results"] == [{"index": 1}, {"index": 0}]
    [[one], [two]] = pages(submitter, f"/jobs/{job}/tasks?fields=index&limit=1")
    assert (one, two) == ({"index": 0}, {"index": 1})


@pytest.mark.parametrize("path", ["/jobs", "/tasks", "/tasks?job=1", "/jobs/{job}/tasks"])
def test_unknown_field_is_named(submitter: Caller, path: str) -> None:
    path = path.format(job=submit(submitter))
    refused = submitter.get(f"{path}{'&' if '?' in path else '?'}fields=id,colour")
    assert refused.status == 422
    assert refused.faults["fields"].startswith("'colour' is no field of this list (known: id, ")


def test_jobs_since_a_time_are_those_whose_own_state_changed(submitter: Caller) -> None:
    old, ended, new = (submit(submitter) for _ in range(3))
    Transition.objects.filter(job_id__in=[old, ended]).update(at=NOON - timedelta(hours=2))
    Transition.objects.filter(job_id=new).update(at=NOON + timedelta(seconds=1))
    values: dict[str, Any] = {"reason": "x", "at": NOON}
    Transition.objects.create(job_id=ended, from_state=0, to_state=3, **values)
    # A change of a task, and one of the job that keeps its state, do not count.
    task = Task.objects.get(job_id=old).pk
    Transition.objects.create(job_id=old, task_id=task, from_state=0, to_state=8, **values)
    Transition.objects.create(job_id=old, from_state=0, to_state=0, **values)
    assert ids(submitter, "since=2031-05-04T12:00:00Z") == [new, ended]
    assert ids(submitter, "since=2031-05-04T14:00:00%2B02:00") == [new, ended]
    assert ids(submitter, "since=2031-05-04T12:00:00.5Z") == [new]
    assert ids(submitter, "since=2031-05-04T09:00:00Z") == [new, ended, old]
    assert ids(submitter, "since=2031-05-05T09:00:00Z") == []
    assert ids(submitter, f"since=2031-05-04T12:00:00Z&id={ended}") == [ended]


@pytest.mark.parametrize("since", ["yesterday", "2031-05-04T12:00:00", "12"])
def test_since_needs_a_time_with_a_zone(submitter: Caller, since: str) -> None:
    refused = submitter.get(f"/jobs?since={since}")
    assert refused.status == 400
    assert "2031-05-04T12:00:00Z" in refused.faults["since"]


def test_since_before_too_many_changes_is_refused(
    submitter: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_ranges, "MAX_CHANGED_ROWS", 3)
    for _ in range(4):
        submit(submitter)
    refused = submitter.get("/jobs?since=2001-01-01T00:00:00Z")
    assert refused.status == 422
    assert "more than 3 changes" in refused.faults["since"]


def test_tasks_of_many_jobs_are_listed_in_pages(
    submitter: Caller, make_cell: Callable[..., Cell]
) -> None:
    first, other, last = (submit(submitter, replicas=3) for _ in range(3))
    cell = make_cell()
    task = Task.objects.get(job_id=first, index=1)
    place(task, cell, state=TaskState.RUNNING)

    def listed(query: str) -> list[list[tuple[int, int]]]:
        found = pages(submitter, f"/tasks?{query}")
        return [[(task["job"], task["index"]) for task in page] for page in found]

    whole = [(last, 0), (last, 1), (last, 2), (first, 0), (first, 1), (first, 2)]
    assert listed(f"job={first},{last}") == [whole]
    assert listed(f"job={first},{last}&limit=2") == [whole[:2], whole[2:4], whole[4:]]
    assert listed(f"job={first},{last}&state=running") == [[(first, 1)]]
    assert listed(f"job={other}&state=running") == [[]]
    assert submitter.get(f"/tasks?job={first}&cell=cell-1").status == 400
    assert submitter.get(f"/tasks?job={first}&cursor=MTI").status == 400


def test_tasks_of_other_projects_and_deleted_jobs_are_left_out(
    submitter: Caller, operator: Caller
) -> None:
    operator.put("/projects/default/lab")
    make_caller("lara", project="lab")
    foreign = submit(operator, project="lab")
    own, deleted = submit(submitter), submit(submitter)
    Job.objects.filter(pk=deleted).update(deleted_at=NOON)
    member = make_caller("max", project="default")
    found = member.get(f"/tasks?job={foreign},{own},{deleted},4711").json["results"]
    assert [task["job"] for task in found] == [own]


def test_examples_of_parameters_are_accepted(submitter: Caller) -> None:
    text = (Path(__file__).parents[3] / "docs" / "openapi.yaml").read_text()
    paths, job, count = yaml.load(text, Loader=yaml.CSafeLoader)["paths"], submit(submitter), 0
    for path, operations in paths.items():
        for parameter in operations.get("get", {}).get("parameters", ()):
            for example in parameter.get("examples", {}).values():
                address = path.removeprefix("/api/v1").replace("{job_id}", str(job))
                value = example["value"].replace("1,2,3", f"{job},{job + 1},{job + 2}")
                answer = submitter.get(f"{address}?{parameter['name']}={value}")
                # The stream itself begins in front of Django.
                expected = 429 if path.endswith("/events") else 200
                assert answer.status == expected, (path, parameter["name"], answer.content)
                count += 1
    assert count >= 10
