"""The band production needs a grant, of an operator, for the user and for the project."""

from typing import Any

import pytest

from controlplane import clock
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.domain.roles import Role
from controlplane.models import Job
from tests.integration.api.conftest import Caller, make_caller

JOB: dict[str, Any] = {"name": "a", "image": "busybox", "command": ["true"]}
URGENT: dict[str, Any] = {**JOB, "band": "production"}


def put(operator: Caller, subject: str, **limits: Any) -> None:
    assert operator.put(f"/quotas/{subject}", limits).status == 200


def grant(operator: Caller, *subjects: str) -> None:
    for subject in subjects:
        put(operator, subject, highest_band="production")


def test_production_is_refused_without_a_grant(submitter: Caller) -> None:
    for band in ("interactive", "batch"):
        assert submitter.post("/jobs", {**JOB, "band": band}).status == 201
    refused = submitter.post("/jobs", URGENT)
    assert (refused.status, list(refused.faults)) == (422, ["band"])
    assert refused.faults["band"] == (
        "production is too high: interactive is the highest band of user ann and interactive is the"
        " highest band of project default/default; an operator can raise it (cellrun quota user ann"
        " --set highest_band=production, cellrun quota project default/default"
        " --set highest_band=production)"
    )
    assert Job.objects.count() == 2


def test_user_and_project_both_need_the_grant(submitter: Caller, operator: Caller) -> None:
    for first, missing in (("user/ann", "project"), ("project/default", "user")):
        grant(operator, first)
        text = submitter.post("/jobs", URGENT).faults["band"]
        assert text.count("highest band of") == 1
        assert f"highest band of {missing} " in text
        put(operator, first, highest_band=None)
    grant(operator, "user/ann", "project/default")
    assert submitter.post("/jobs", URGENT).status == 201
    other = make_caller("bob", Role.SUBMITTER)
    assert "highest band of user bob" in other.post("/jobs", URGENT).faults["band"]


def test_limit_below_the_default_band_is_obeyed(submitter: Caller, operator: Caller) -> None:
    put(operator, "domain/default", highest_band="batch")
    text = submitter.post("/jobs", JOB).faults["band"]
    assert text.startswith("interactive is too high: batch is the highest band of domain default;")
    assert submitter.post("/jobs", {**JOB, "band": "batch"}).status == 201


@pytest.mark.parametrize("more", [{}, {"allow_unsatisfiable": True}])
def test_dry_run_and_batch_obey_the_limit(submitter: Caller, more: dict[str, Any]) -> None:
    body = {**URGENT, **more}
    for path, document in (
        ("/jobs", body),
        ("/jobs:dry-run", body),
        ("/jobs:batch", {"jobs": [JOB, body]}),
    ):
        refused = submitter.post(path, document)
        assert refused.status == 422, path
        assert "production is too high" in refused.json["detail"]
    assert not Job.objects.exists()


def test_one_off_task_obeys_the_limit(submitter: Caller) -> None:
    definition = {"image": "busybox", "command": ["true"], "band": "production"}
    refused = submitter.post("/tasks", {"guid": "one", "domain": "x", "definition": definition})
    assert (refused.status, list(refused.faults)) == (422, ["definition.band"])


def test_retry_obeys_the_limit_of_its_day(submitter: Caller, operator: Caller) -> None:
    grant(operator, "user/ann", "project/default")
    job = submitter.post("/jobs", URGENT).json["id"]
    cancel_job(job_id=job, reason="", force=False, actor="ann", now=clock.now())
    put(operator, "project/default", highest_band="interactive")
    refused = submitter.post(f"/jobs/{job}/retry")
    assert refused.status == 409
    assert "highest band of project default/default" in refused.json["detail"]
    grant(operator, "project/default")
    assert submitter.post(f"/jobs/{job}/retry").status == 201


def test_existing_job_is_returned_although_its_band_is_no_longer_allowed(
    submitter: Caller, operator: Caller
) -> None:
    grant(operator, "user/ann", "project/default")
    body = {**URGENT, "guid": "one"}
    job = submitter.post("/jobs", body).json["id"]
    put(operator, "user/ann", highest_band="interactive")
    again = submitter.post("/jobs", body)
    assert (again.status, again.json["id"]) == (200, job)
