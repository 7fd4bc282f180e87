"""`cellrun describe`: a page about a job, a task, an attempt or a cell."""

import json

import pytest
from typer.testing import CliRunner

from cellrun import Session
from controlplane import clock
from controlplane.commands.cells.operate import enroll_cell
from controlplane.commands.state.attempt_uids import draw_uids
from controlplane.contract.states import TaskState
from controlplane.models import Attempt, Cell, Job, Task, TaskGroup
from tests.harness.terminal import read_until, terminal
from tests.integration.client.test_against_the_api import SPEC, call
from tests.integration.client.test_against_the_api import command as command
from tests.integration.client.test_against_the_api import served as served
from tests.integration.client.test_against_the_api import session as session

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def job_id(session: Session) -> int:
    return session.submit(
        {**SPEC, "resources": {"cpu": 2, "memory": "1Gi"}, "labels": {"team": "ml"}}
    )["id"]


def fail_first(job_id: int) -> str:
    """Let the first task of a job fail on cell-1; return the uid of its attempt."""
    enroll_cell(name="cell-1", pool="default", now=clock.now())
    task, now = Task.objects.filter(job_id=job_id).order_by("index")[0], clock.now()
    attempt = Attempt.objects.create(
        uid=draw_uids(1, now=now)[0],
        task=task,
        group_id=task.group_id,
        job_id=job_id,
        cell=Cell.objects.get(),
        number=1,
        state=TaskState.FAILED,
        exit_code=3,
        message="exit code 3",
        start_before=now,
        created_at=now,
        state_since=now,
        finished_at=now,
        released_at=now,
        release_kind="confirmed",
    )
    Task.objects.filter(pk=task.pk).update(
        state=TaskState.FAILED,
        failure_reason="exit code 3",
        finished_at=now,
        attempt_uid=attempt.pk,
        attempt_number=1,
    )
    return str(attempt.pk)


def test_job_has_groups_requests_and_why_tasks_wait(
    command: CliRunner, session: Session, job_id: int
) -> None:
    text = "no cell of the pool has 2 cores free"
    TaskGroup.objects.filter(job_id=job_id).update(
        pending_reason={"code": "capacity", "text": text}
    )
    shown = call(command, "describe", "sweep")
    assert shown.exit_code == 0, shown.output
    for part in ("pending", "default/default", "team=ml", "3 pending", "cpu 2, memory 1Gi"):
        assert part in shown.stdout
    assert f"cellrun logs {job_id}" in shown.stdout
    assert f"all: cellrun history {job_id}" in shown.stdout
    assert shown.stdout.count(text) == 1


def test_job_has_the_tasks_that_failed_and_its_own_reason(command: CliRunner, job_id: int) -> None:
    fail_first(job_id)
    Job.objects.update(failure_reason="too many tasks failed")
    shown = call(command, "describe", str(job_id)).stdout
    assert "too many tasks failed" in shown
    assert f"{job_id}/main.0 failed" in shown
    assert "exit code 3" in shown


def test_task_and_attempt_have_their_cell_and_reason(command: CliRunner, job_id: int) -> None:
    uid = fail_first(job_id)
    for address in (f"{job_id}/0", uid, f"{job_id}/main.0#1"):
        shown = call(command, "describe", address)
        assert shown.exit_code == 0, shown.output
        assert "exit code 3" in shown.stdout
        assert "cell-1" in shown.stdout
        assert "cellrun logs" in shown.stdout
    waits = call(command, "describe", f"{job_id}/1").stdout
    assert "why it waits" in waits
    assert "attempts:" not in waits


def test_requests_that_a_retry_rule_increased_are_shown(command: CliRunner, job_id: int) -> None:
    uid = fail_first(job_id)
    assert "cpu 2, memory_mib 1024" in call(command, "describe", uid).stdout
    shown = call(command, "describe", f"{job_id}/0").stdout
    assert "cpu 2, memory_mib 1024" in shown
    assert "REQUESTS" not in shown
    grown = {"cpu_millis": 2000, "memory_mib": 2048}
    now, first = clock.now(), Attempt.objects.get()
    first.pk, first.number, first.resources = draw_uids(1, now=now)[0], 2, grown
    first.save(force_insert=True)
    Task.objects.filter(pk=first.task_id).update(attempt_uid=first.pk, resources=grown)
    shown = call(command, "describe", f"{job_id}/0").stdout
    assert "REQUESTS" in shown
    assert shown.count("cpu 2, memory_mib 2048") == 2
    assert shown.count("cpu 2, memory_mib 1024") == 1


def test_cell_is_described_and_groups_are_refused(command: CliRunner, job_id: int) -> None:
    enroll_cell(name="cell-1", now=clock.now())
    assert "cell-1" in call(command, "describe", "--cell", "cell-1").stdout
    found = call(command, "describe", "--cell", "cell-1", "-o", "jsonpath=.name")
    assert found.stdout == "cell-1\n"
    refused = call(command, "describe", f"{job_id}/main")
    assert (refused.exit_code, "not a group" in refused.stderr) == (2, True)
    assert call(command, "describe", "cell-1", "--cell", "--task").exit_code == 2
    document = json.loads(call(command, "describe", str(job_id), "-o", "json").stdout)
    assert (document["id"], len(document["waiting"])) == (job_id, 3)


def test_page_fits_a_terminal(command: CliRunner, job_id: int) -> None:
    with terminal("describe", str(job_id)) as (_, reader):
        assert "logs:" in read_until(reader, b"cellrun logs").decode()
