"""Submission: whole or not at all, once for a guid, names by policy, deletion at once."""

from typing import Any

import pytest

from controlplane import clock
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.retention.deletion import delete_job
from controlplane.domain.errors import Conflict
from controlplane.domain.jobs.submission import GuidTaken, JobsRefused
from controlplane.domain.roles import Role
from controlplane.models import Attempt, Job, Task, Transition
from tests.integration.api.conftest import Caller, make_caller
from tests.scenarios.stage import SMALL, Stage

BODY: dict[str, Any] = {"name": "nightly", **SMALL}


@pytest.fixture
def ann(stage: Stage) -> Caller:
    return make_caller("ann", Role.SUBMITTER)


def test_same_guid_returns_the_job_and_another_body_conflicts(ann: Caller) -> None:
    first = ann.post("/jobs", {**BODY, "guid": "g"})
    again = ann.post("/jobs", {**BODY, "guid": "g"})
    assert (first.status, again.status) == (201, 200)
    assert first.json["id"] == again.json["id"]
    assert ann.post("/jobs", {**BODY, "guid": "g", "replicas": 2}).status == 409
    assert Job.objects.count() == Task.objects.count() == 1


def test_idempotency_key_acts_as_a_guid(ann: Caller) -> None:
    first = ann.post("/jobs", BODY, Idempotency_Key="k")
    again = ann.post("/jobs", BODY, Idempotency_Key="k")
    assert (first.status, again.status) == (201, 200)
    assert first.json["id"] == again.json["id"]
    assert ann.post("/jobs", {**BODY, "replicas": 2}, Idempotency_Key="k").status == 409


def test_submissions_without_guid_or_key_create_separate_jobs(ann: Caller) -> None:
    assert ann.post("/jobs", BODY).json["id"] != ann.post("/jobs", BODY).json["id"]


@pytest.mark.parametrize(
    ("policy", "status", "is_same"),
    [(None, 201, False), ("keep", 200, True), ("error", 409, None), ("replace", 201, False)],
)
def test_existing_job_policy_decides_about_a_name_in_use(
    ann: Caller, policy: str | None, status: int, is_same: bool | None
) -> None:
    first = ann.post("/jobs", BODY).json["id"]
    fields = {} if policy is None else {"existing_job_policy": policy}
    answer = ann.post("/jobs", {**BODY, **fields})
    assert answer.status == status
    if is_same is not None:
        assert (answer.json["id"] == first) == is_same
    ended = ann.get(f"/jobs/{first}").json
    assert ended["ending_as"] == ("KILLED" if policy == "replace" else None)


@pytest.mark.parametrize("policy", ["keep", "error", "replace"])
def test_name_of_an_ended_or_another_users_job_is_free(
    stage: Stage, ann: Caller, policy: str
) -> None:
    ended = ann.post("/jobs", BODY).json["id"]
    cancel_job(job_id=ended, reason="", force=False, actor="ann", now=clock.now())
    others = make_caller("bob", Role.SUBMITTER).post("/jobs", BODY).json["id"]
    answer = ann.post("/jobs", {**BODY, "existing_job_policy": policy})
    assert answer.status == 201
    assert answer.json["id"] not in (ended, others)
    assert stage.job(Job.objects.get(pk=others)).ending_as is None


def test_invalid_job_in_a_batch_refuses_the_batch(ann: Caller) -> None:
    answer = ann.post("/jobs:batch", {"jobs": [BODY, {**BODY, "pool": "nowhere"}]})
    assert answer.status == 422
    assert not Job.objects.exists()


def test_unsatisfiable_job_is_refused_with_the_shortfall(stage: Stage) -> None:
    stage.cell(cpu=1000)
    with pytest.raises(JobsRefused, match="cell-1 comes closest and lacks 1 of 2 cores"):
        stage.submit(resources={"cpu": 2, "memory": "64Mi"})
    large = {"cpu": 2, "memory": "64Mi"}
    assert stage.submit(resources=large, allow_unsatisfiable=True).pk


def test_pool_that_never_had_a_cell_accepts_any_job(stage: Stage) -> None:
    assert stage.submit(resources={"cpu": 2000, "memory": "64Mi"}).pk


def test_deleted_job_is_not_found_and_its_guid_is_free(stage: Stage, ann: Caller) -> None:
    key = ann.post("/jobs", {**BODY, "guid": "g"}).json["id"]
    with pytest.raises(Conflict, match="cancel it first"):
        delete_job(job_id=key, actor="ann", now=clock.now())
    cancel_job(job_id=key, reason="", force=False, actor="ann", now=clock.now())
    delete_job(job_id=key, actor="ann", now=clock.now())
    assert ann.get(f"/jobs/{key}").status == 404
    assert ann.post("/jobs", {**BODY, "guid": "g"}).status == 201


def test_rows_of_a_deleted_job_are_purged_with_its_last_release(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.running()
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    delete_job(job_id=job.pk, actor="me", now=clock.now())
    stage.settle()
    assert Attempt.objects.filter(pk=attempt.pk, released_at=None).exists()
    stage.confirm(attempt)
    stage.settle()
    assert not Job.objects.filter(pk=job.pk).exists()
    assert not Task.objects.filter(job_id=job.pk).exists()
    assert not Attempt.objects.filter(job_id=job.pk).exists()
    assert not Transition.objects.filter(job_id=job.pk).exists()


def test_another_body_under_a_used_guid_is_a_conflict(stage: Stage) -> None:
    stage.submit_small(guid="g")
    with pytest.raises(GuidTaken):
        stage.submit_small(guid="g", replicas=2)
