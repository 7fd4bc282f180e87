"""Concurrency keys in the API: refusals with fields, conflicts, and reasons within the walls."""

from collections.abc import Callable
from typing import Any

from controlplane.domain.roles import Role
from controlplane.models import Cell, Domain, Job, Project
from controlplane.ticks import placement
from tests.integration.api.conftest import Caller, make_caller

RULE = {"key": "customer-42", "limit": 1}


def body(**more: Any) -> dict[str, Any]:
    resources = {"cpu": 0.1, "memory": "64Mi"}
    return {"name": "a", "image": "busybox", "resources": resources, "concurrency": RULE, **more}


def test_full_key_is_a_conflict_with_its_field(submitter: Caller) -> None:
    rule = {**RULE, "on_conflict": "reject"}
    first = submitter.post("/jobs", body(concurrency=rule))
    assert first.status == 201
    assert first.json["spec"]["concurrency"] == rule
    text = (
        f"concurrency key customer-42 is full: 1 open task of job {first.json['id']} + 1 of this"
        " job > 1 allowed (on_conflict: reject)"
    )
    for path in ("/jobs", "/jobs:dry-run"):
        answer = submitter.post(path, body(concurrency=rule))
        assert (answer.status, answer.faults) == (409, {"concurrency.key": text})
    batch = submitter.post("/jobs:batch", [body(concurrency=rule, name="b")])
    assert batch.status == 409
    assert Job.objects.count() == 1


def test_wrong_rule_is_refused_with_its_field(submitter: Caller) -> None:
    answer = submitter.post("/jobs", body(concurrency={"key": "k", "limits": 1}))
    assert answer.status == 422
    assert "concurrency.limits" in answer.faults


def test_reason_names_jobs_of_the_own_project_only(make_cell: Callable[..., Cell]) -> None:
    Project.objects.create(domain=Domain.objects.get(), name="other")
    submitter = make_caller("ann", Role.SUBMITTER, project="default")
    outsider = make_caller("bob", Role.SUBMITTER, project="other")
    make_cell()
    Cell.objects.update(state="READY", incarnation="one")
    for caller, project in ((submitter, "default"), (outsider, "other")):
        for _ in range(2):
            assert caller.post("/jobs", body(project=project)).status == 201
    placement.run()
    first, second = Job.objects.filter(project__name="other").order_by("id")
    tasks = outsider.get(f"/jobs/{second.pk}/tasks").json["results"]
    reason = tasks[0]["pending_reason"]
    assert reason["code"] == "concurrency_limit"
    assert reason["jobs"] == [{"job": first.pk, "tasks": 1}]
    assert reason["text"].endswith(f"held by job {first.pk}")
    assert submitter.get(f"/jobs/{second.pk}/tasks").status == 404
