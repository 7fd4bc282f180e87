"""Retry, deletion, release and jobs that have to do with others: the command against the API."""

import json

import pytest
from typer.testing import CliRunner

from cellrun import ApiError, Session
from controlplane.contract.states import TaskState
from controlplane.models import Attempt, Job, Task, TaskGroup
from tests.integration.client.test_against_the_api import SPEC, call, make_attempt
from tests.integration.client.test_against_the_api import command as command
from tests.integration.client.test_against_the_api import served as served
from tests.integration.client.test_against_the_api import session as session

pytestmark = pytest.mark.django_db(transaction=True)

FULL = """
name: all-of-it
coscheduled: true
delivery: at_most_once
exclusive: strict
min_available: 3
parent: first
existing_job_policy: replace
depends_on:
- {job: first, until: finished}
groups:
- {name: a, image: busybox, replicas: 3, min_available: 2}
- {name: b, image: busybox, exclusive: false, delivery: at_least_once, retries: {failure: 2}}
"""


def test_submit_passes_on_every_job_field(command: CliRunner, session: Session) -> None:
    first = session.submit({**SPEC, "guid": "first"})
    submitted = call(command, "submit", "-", "-o", "json", typed=FULL)
    assert submitted.exit_code == 0, submitted.stderr
    job = json.loads(submitted.stdout)
    assert (job["coscheduled"], job["parent"], job["min_available"]) == (True, first["id"], 3)
    assert [item["until"] for item in job["waits_for"]] == ["finished"]
    a, b = TaskGroup.objects.filter(job_id=job["id"]).order_by("position")
    assert (a.at_most_once, a.exclusive, a.min_available) == (True, "strict", 2)
    assert (b.at_most_once, b.exclusive, b.retries_failure) == (False, "", 2)
    shown = call(command, "job", str(job["id"])).stdout
    assert f"a gang · a child of job {first['id']} · waits until job first has finished" in shown
    assert "1 child" in call(command, "job", str(first["id"])).stdout
    explained = call(command, "explain", str(job["id"])).stdout
    assert "waits until job first has finished" in explained
    newer = json.loads(call(command, "submit", "-", "-o", "json", typed=FULL).stdout)
    assert Job.objects.get(pk=job["id"]).ending_reason == "replaced"
    assert ("settled", job["id"]) in [(w["until"], w["job"]) for w in newer["waits_for"]]


def test_a_job_is_retried_and_deleted(command: CliRunner, session: Session) -> None:
    job_id = session.submit(SPEC)["id"]
    refused = call(command, "retry", str(job_id))
    assert (refused.exit_code, refused.stderr) == (
        2,
        f"cellrun: job {job_id} has not ended: retry it after its end, or cancel it first [409]\n",
    )
    session.cancel_job(job_id)
    made = call(command, "retry", str(job_id), "--key", "again")
    new = Job.objects.get(retry_of_id=job_id)
    assert made.stdout == f"job {new.pk} (sweep) retries 3 tasks of job {job_id}\n"
    assert session.retry_job(job_id, key="again")["id"] == new.pk
    assert f"a retry of job {job_id}" in call(command, "job", str(new.pk)).stdout

    in_use = call(command, "delete", str(job_id), "--yes")
    assert "a retry of job" in in_use.stderr
    session.cancel_job(new.pk)
    assert call(command, "delete", str(job_id), "--yes").stdout == f"job {job_id} is deleted\n"
    with pytest.raises(ApiError) as caught:
        session.job(job_id)
    assert caught.value.status == 404
    for words in (["job"], ["explain"], ["logs"], ["wait"], ["retry"], ["cancel"]):
        gone = call(command, *words, str(job_id))
        assert (gone.exit_code, "[404]" in gone.stderr) == (2, True), words
    assert [job["id"] for job in session.jobs()] == [new.pk]


def test_an_operator_releases_an_attempt(command: CliRunner, session: Session) -> None:
    job = session.submit({**SPEC, "replicas": 1})
    attempt = make_attempt(job["id"])
    Attempt.objects.filter(pk=attempt.pk).update(
        state=TaskState.WORKER_FAILED, released_at=None, release_kind="", incarnation="i"
    )
    Task.objects.update(state=TaskState.PENDING, finished_at=None, attempt_open=True)
    explained = call(command, "explain", str(job["id"])).stdout
    assert "waits until the container of its previous attempt is confirmed gone" in explained
    result = call(command, "release-attempt", str(attempt.pk), "--reason", "scrap")
    assert (result.exit_code, result.stdout) == (0, f"attempt {attempt.pk} is released\n")
    assert session.attempt(str(attempt.pk))["release_kind"] == "operator"
    again = call(command, "release-attempt", str(attempt.pk), "--reason", "scrap")
    assert "released already [409]" in again.stderr
