"""A submitted job is there as a whole (rows, counts, history, inputs), and once for a guid."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane import clock
from controlplane.commands.jobs.submit import submit_jobs
from controlplane.contract.states import TaskState
from controlplane.domain.jobs.submission import GuidTaken
from controlplane.domain.roles import Role
from controlplane.models import Cell, Domain, Job, Project, Task, TaskGroup, Transition
from controlplane.queries.attempts.group_specs import load_group_specs
from controlplane.spec import parse_job
from tests.integration.api.conftest import Caller, change_setting, make_caller
from tests.integration.api.links import use_link
from tests.integration.api.test_reading import place

YOURS = "`cellrun project list` lists your projects"
JOB = {"name": "hello", "image": "busybox", "command": ["true"], "replicas": 3}


def test_submitted_job_is_stored_with_tasks_and_history(submitter: Caller) -> None:
    answer = submitter.post("/jobs", {**JOB, "labels": {"team": "x"}, "annotation": "note"})
    assert answer.status == 201
    job = answer.json
    assert answer.headers["Location"].endswith(f"/api/v1/jobs/{job['id']}")
    assert (job["state"], job["band"], job["kind"]) == ("PENDING", "interactive", "batch")
    assert (job["min_available"], job["max_task_failures"]) == (3, 0)
    assert job["task_status_count"] == {"main": {"phase": {"PENDING": 3}}}
    assert job["spec"] == {**JOB, "labels": {"team": "x"}, "annotation": "note"}
    assert submitter.get(f"/jobs/{job['id']}").json == job
    assert list(Task.objects.order_by("id").values_list("index", "state")) == [
        (0, TaskState.PENDING),
        (1, TaskState.PENDING),
        (2, TaskState.PENDING),
    ]
    history = Transition.objects.get()
    assert (history.job_id, history.task_id, history.to_state) == (job["id"], None, 1)
    assert (history.reason, history.actor) == ("submitted", "ann")


def test_yaml_body_is_accepted(submitter: Caller) -> None:
    text = b"name: hello\nimage: busybox\ncommand: [echo, yes]\n"
    answer = submitter.send("POST", "/jobs", text, content_type="application/yaml; charset=utf-8")
    assert answer.status == 201
    assert answer.json["spec"]["command"] == ["echo", "yes"]


def test_groups_become_rows_with_their_minima_retries_and_dependencies(submitter: Caller) -> None:
    body = {
        "name": "two",
        "groups": [
            {"name": "a", "image": "busybox", "replicas": 4, "min_available": 2},
            {
                "name": "b",
                "image": "busybox",
                "retries": {"failure": 5},
                "inputs": [{"from": {"group": "a", "result": True}, "path": "/in/parts/"}],
            },
        ],
        "retries": {"system": 7},
        "scheduling_timeout_seconds": 60,
    }
    job = submitter.post("/jobs", body).json
    assert (job["min_available"], job["max_task_failures"]) == (3, 2)
    a, b = TaskGroup.objects.order_by("position")
    assert (a.counts[TaskState.PENDING], sum(a.counts), a.min_available) == (4, 4, 2)
    assert a.startable_at == Job.objects.get().created_at
    assert a.deadline_at == a.startable_at + timedelta(seconds=60)
    assert (a.retries_failure, a.retries_preemption, a.retries_system) == (0, 100, 7)
    assert b.depends_on == [{"group": "a", "until": "succeeded"}]
    assert (b.startable_at, b.deadline_at, b.min_available) == (None, None, 1)
    assert (b.retries_failure, b.retries_system) == (5, 7)
    assert Job.objects.get().has_dependencies


def test_scheduling_deadline_counts_from_start_after(submitter: Caller) -> None:
    body = {**JOB, "start_after": "2050-01-01T00:00:00Z", "scheduling_timeout_seconds": 30}
    submitter.post("/jobs", body)
    group = TaskGroup.objects.get()
    assert group.startable_at == datetime(2050, 1, 1, tzinfo=UTC)
    assert group.deadline_at == group.startable_at + timedelta(seconds=30)
    assert Job.objects.get().scheduling_timeout_seconds == 30


def test_group_specs_contain_signed_links_to_inputs(
    submitter: Caller, anonymous: Caller, make_cell: Callable[..., Cell]
) -> None:
    body = {
        "name": "reads",
        "groups": [
            {
                "name": "a",
                "image": "busybox",
                "inputs": [{"content": "häßlich", "path": "/in/text"}],
                "resources": {"cpu": 0.1, "memory": "32Mi"},
            },
            {
                "name": "b",
                "image": "busybox",
                "inputs": [{"from": {"group": "a", "result": True}, "path": "/in/parts/"}],
            },
        ],
    }
    submitter.post("/jobs", body)
    a, b = TaskGroup.objects.order_by("position")
    specs = load_group_specs([a.pk, b.pk, 0]).read
    assert set(specs) == {a.pk, b.pk}
    cell = make_cell()
    for task in Task.objects.all():
        place(task, cell)
    assert specs[a.pk].resources == {"cpu_millis": 100, "memory_mib": 32}
    [text] = specs[a.pk].inputs
    assert (text.path, text.bundle) == ("/in/text", False)
    assert use_link(text.url, cell).content.decode() == "häßlich"
    [parts] = specs[b.pk].inputs
    assert (parts.path, parts.bundle, parts.sha256) == ("/in/parts/", True, None)
    assert use_link(parts.url, cell).content == b""
    assert use_link(parts.url + "0", cell).status == 403
    assert use_link(text.url.replace("/inputs/", "/inputs/0"), cell).status == 403
    assert anonymous.get(text.url.partition("?")[0]).status == 403


# ---------------------------------------------------------------------------------- idempotency


def test_same_guid_and_body_return_the_same_job(submitter: Caller) -> None:
    first = submitter.post("/jobs", {**JOB, "guid": "g-1"})
    second = submitter.post("/jobs", {"guid": "g-1", **JOB})
    assert (first.status, second.status) == (201, 200)
    assert first.json == second.json
    assert Job.objects.count() == 1


def test_another_body_with_the_same_guid_is_a_conflict(submitter: Caller) -> None:
    submitter.post("/jobs", {**JOB, "guid": "g-1"})
    answer = submitter.post("/jobs", {**JOB, "guid": "g-1", "replicas": 4})
    assert answer.status == 409
    assert "g-1" in answer.faults["guid"]
    assert Job.objects.count() == 1


def test_idempotency_key_acts_as_a_guid(submitter: Caller) -> None:
    first = submitter.post("/jobs", JOB, Idempotency_Key="k-1")
    second = submitter.post("/jobs", JOB, Idempotency_Key="k-1")
    assert (first.status, second.status) == (201, 200)
    assert first.json["guid"] == "k-1"
    clash = submitter.post("/jobs", {**JOB, "guid": "g"}, Idempotency_Key="k-1")
    assert clash.status == 400
    assert submitter.post("/jobs", JOB, Idempotency_Key="k 1").status == 400


@pytest.mark.django_db(transaction=True)
def test_concurrent_submissions_of_one_guid_create_one_job(
    submitter: Caller, operator: Caller
) -> None:
    body = {**JOB, "guid": "g-race"}
    gate = threading.Barrier(8)
    created: list[bool] = []

    def submit(owner: Any) -> None:
        gate.wait(timeout=30)
        try:
            [one] = submit_jobs(
                specs=[parse_job(body)], bodies=[body], owner=owner, now=clock.now()
            )
            created.append(one.created)
        finally:
            connection.close()

    people = [submitter.user, operator.user] * 4
    threads = [threading.Thread(target=submit, args=(owner,)) for owner in people]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(created) == [False] * 7 + [True]
    assert (Job.objects.count(), Task.objects.count(), Transition.objects.count()) == (1, 3, 1)


# ---------------------------------------------------------------------------------------- batches


@pytest.mark.parametrize("wrap", [lambda jobs: jobs, lambda jobs: {"jobs": jobs}])
def test_batch_creates_all_of_its_jobs(submitter: Caller, wrap: Callable[[Any], Any]) -> None:
    batch = [{**JOB, "name": f"job-{n}"} for n in range(5)] + [{**JOB, "guid": "g"}] * 2
    answer = submitter.post("/jobs:batch", wrap(batch))
    assert answer.status == 201
    results = answer.json["results"]
    assert [job["name"] for job in results] == [body["name"] for body in batch]
    assert [job["created"] for job in results] == [True] * 6 + [False]
    assert results[5]["id"] == results[6]["id"]
    assert (Job.objects.count(), Task.objects.count()) == (6, 18)


def test_invalid_job_in_a_batch_refuses_the_batch_and_is_named(submitter: Caller) -> None:
    bad = [JOB, {**JOB, "replicas": 0}, {**JOB, "pool": "P"}]
    assert set(submitter.post("/jobs:batch", bad).faults) == {"[1].replicas", "[2].pool"}
    unknown = {"jobs": [JOB, {**JOB, "pool": "none"}]}
    assert submitter.post("/jobs:batch", unknown).faults == {
        "jobs[1].pool": "there is no pool none"
    }
    clash = [{**JOB, "guid": "g"}, {**JOB, "guid": "g", "replicas": 1}]
    assert submitter.post("/jobs:batch", clash).status == 409
    assert submitter.post("/jobs:batch", []).status == 422
    assert submitter.post("/jobs:batch", [JOB] * 1001).status == 422
    assert submitter.post("/jobs:batch", {"job": []}).status == 422
    assert not Job.objects.exists()


def test_repeated_guid_in_a_batch_resolves_to_the_existing_job(
    submitter: Caller,
) -> None:
    existing = submitter.post("/jobs", JOB).json["id"]
    named = {**JOB, "existing_job_policy": "keep", "guid": "g"}
    answer = submitter.post("/jobs:batch", [named, named, {**JOB, "name": "other"}])
    assert answer.status == 201
    first, second, other = (item["id"] for item in answer.json["results"])
    assert (first, second) == (existing, existing)
    assert other != existing
    assert Job.objects.count() == 2


def test_batch_takes_as_many_statements_as_one_job(submitter: Caller) -> None:
    def count(number: int) -> int:
        bodies = [{**JOB, "guid": f"{number}-{n}"} for n in range(number)]
        with CaptureQueriesContext(connection) as statements:
            submit_jobs(
                specs=[parse_job(body) for body in bodies],
                bodies=bodies,
                owner=submitter.user,
                now=clock.now(),
            )
        return len(statements)

    assert count(50) == count(1)


def test_guids_are_scoped_to_a_project(submitter: Caller) -> None:
    Project.objects.create(domain=Domain.objects.get(), name="other")
    one = submitter.post("/jobs", {**JOB, "guid": "g"})
    two = submitter.post("/jobs", {**JOB, "guid": "g", "project": "other"})
    assert (one.status, two.status) == (201, 201)


def test_job_that_another_user_submitted_with_the_guid_stays_with_that_user(
    submitter: Caller,
) -> None:
    first = submitter.post("/jobs", {**JOB, "guid": "g"})
    other = make_caller("other", Role.SUBMITTER)
    again = other.post("/jobs", {**JOB, "guid": "g"})
    assert (again.status, again.json) == (200, first.json)
    job = f"/jobs/{first.json['id']}"
    assert other.post(f"{job}/cancel", {}).status == 403
    assert other.send("DELETE", job).status == 403
    assert submitter.post(f"{job}/cancel", {}).status in (200, 202)


# ------------------------------------------------------------------------------------------- caps


def test_job_over_the_task_limit_is_refused(submitter: Caller) -> None:
    answer = submitter.post("/jobs", {**JOB, "replicas": 10_001})
    assert answer.status == 422
    assert "10001 tasks are more than the 10000" in answer.faults["replicas"]
    groups = [{"name": name, "image": "busybox", "replicas": 6_000} for name in ("a", "b")]
    answer = submitter.post("/jobs", {"name": "x", "groups": groups})
    assert "12000 tasks" in answer.faults["groups[0].replicas"]
    assert not Job.objects.exists()


def test_unfinished_tasks_over_the_user_limit_are_refused(
    submitter: Caller, operator: Caller, settings: Any
) -> None:
    change_setting(settings, max_unfinished_tasks_per_user=5)
    assert submitter.post("/jobs", {**JOB, "guid": "g"}).status == 201
    answer = submitter.post("/jobs", JOB)
    assert answer.status == 422
    assert "6 unfinished tasks of user ann, who may have 5" in answer.faults["replicas"]
    assert submitter.post("/jobs", {**JOB, "guid": "g"}).status == 200
    assert submitter.post("/jobs", {**JOB, "replicas": 2}).status == 201
    assert operator.post("/jobs", JOB).status == 201
    assert Job.objects.count() == 3


def test_job_larger_than_every_cell_is_refused_with_the_shortfall(
    submitter: Caller, make_cell: Callable[..., Cell]
) -> None:
    huge = {**JOB, "resources": {"cpu": 1, "memory": "3Gi"}}
    assert submitter.post("/jobs", huge).status == 201  # the pool never had a cell
    make_cell("small", memory_mib=1024)
    make_cell("large")
    answer = submitter.post("/jobs", huge)
    assert answer.status == 422
    text = answer.faults["resources.memory"]
    assert "large comes closest and lacks 1024 of 3072 MiB of memory" in text
    assert submitter.post("/jobs", {**huge, "allow_unsatisfiable": True}).status == 201
    assert submitter.post("/jobs", JOB).status == 201


@pytest.mark.parametrize(
    ("given", "field", "text"),
    [
        ("pool", "pool", "there is no pool none"),
        ("domain", "project", f"there is no project none/default; {YOURS}"),
        ("project", "project", f"there is no project default/none; {YOURS}"),
    ],
)
def test_unknown_tenancy_is_named(submitter: Caller, given: str, field: str, text: str) -> None:
    answer = submitter.post("/jobs", {**JOB, given: "none"})
    assert (answer.status, answer.faults.get(field)) == (422, text)


def test_guid_conflict_names_the_existing_job(submitter: Caller) -> None:
    job_id = submitter.post("/jobs", {**JOB, "guid": "g"}).json["id"]
    body = {**JOB, "guid": "g", "replicas": 9}
    with pytest.raises(GuidTaken, match=f"belongs to job {job_id}"):
        submit_jobs(specs=[parse_job(body)], bodies=[body], owner=submitter.user, now=clock.now())
