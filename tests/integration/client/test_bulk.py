"""`cellrun bulk` against the API: pages run between its requests, as convergence runs them."""

import json
import os

import pytest
from typer.testing import CliRunner

from cellrun import Session
from controlplane import clock
from controlplane.commands.bulk import run_bulk_page
from controlplane.models import AuditLine, BulkOperation, Job
from tests.harness.terminal import read_until, terminal
from tests.integration.client.test_against_the_api import SPEC, call
from tests.integration.client.test_against_the_api import command as command
from tests.integration.client.test_against_the_api import served as served
from tests.integration.client.test_against_the_api import session as session

pytestmark = pytest.mark.django_db(transaction=True)


def submit(session: Session, number: int) -> list[int]:
    return [session.submit({**SPEC, "labels": {"sweep": "7"}})["id"] for _ in range(number)]


def run_page() -> BulkOperation:
    operation = BulkOperation.objects.latest("pk")
    run_bulk_page(operation.pk, now=clock.now(), is_over=lambda: False)
    return operation


def run_to_end() -> BulkOperation:
    for _ in range(10):
        operation = run_page()
        operation.refresh_from_db()
        if operation.ended_at is not None:
            return operation
    raise AssertionError("the operation does not end")


def test_jobs_of_a_label_are_cancelled_and_the_others_stay(
    command: CliRunner, session: Session
) -> None:
    jobs, other = submit(session, 2), session.submit(SPEC)["id"]
    words = ("--label", "sweep=7", "--reason", "wrong data")
    started = call(command, "bulk", "cancel", *words, "--yes", "--no-wait")
    assert started.exit_code == 0, started.stderr
    assert "2 jobs to cancel" in started.stderr
    operation = run_to_end()
    followed = call(command, "bulk", "show", str(operation.pk), "--follow")
    assert (followed.exit_code, followed.stdout) == (
        0,
        f"bulk operation {operation.pk} is done: 2 jobs cancelled\n",
    )
    assert {session.job(job_id)["state"] for job_id in jobs} == {"KILLED"}
    assert session.job(other)["state"] == "PENDING"
    listed = call(command, "bulk", "list").stdout.splitlines()
    assert len(listed) == 2
    assert "label sweep=7" in listed[1]
    line = AuditLine.objects.get(action="start.bulk_operation")
    assert line.text == "wrong data"


def test_dry_run_changes_nothing_for_every_action(command: CliRunner, session: Session) -> None:
    (job_id,) = submit(session, 1)
    for action, count in (("cancel", 1), ("hold", 1), ("release", 0), ("retry", 0), ("delete", 0)):
        done = call(command, "bulk", action, "--project", "default", "--dry-run", "-o", "json")
        assert done.exit_code == 0, done.stderr
        assert json.loads(done.stdout)["count"] == count
    assert not BulkOperation.objects.exists()
    assert session.job(job_id)["state"] == "PENDING"


def test_jobs_are_held_released_and_deleted(command: CliRunner, session: Session) -> None:
    (job_id,) = submit(session, 1)
    words = ("--name", "sweep", "--reason", "later", "--yes", "--no-wait")
    for action in ("hold", "release", "cancel", "delete"):
        assert call(command, "bulk", action, *words).exit_code == 0
        run_page()
        assert Job.objects.get(pk=job_id).is_held is (action == "hold")
    assert Job.objects.get(pk=job_id).deleted_at is not None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--project", "nowhere"), "there is no project default/nowhere"),
        (("--name", "sweep", "--state", "sleeping"), "filter.states"),
        (("--name", "sweep", "--state", "succeeded"), "filter.states: must have one of"),
        (("--name", "other"), "there is no job to cancel that matches"),
    ],
)
def test_wrong_filter_is_refused_with_its_field(
    command: CliRunner, session: Session, words: tuple[str, ...], expected: str
) -> None:
    submit(session, 1)
    done = call(command, "bulk", "cancel", *words, "--reason", "r", "--yes")
    assert (done.exit_code, done.stdout) == (2, "")
    assert expected in done.stderr
    assert not BulkOperation.objects.exists()


def test_operation_is_stopped(command: CliRunner, session: Session) -> None:
    jobs = submit(session, 2)
    call(command, "bulk", "cancel", "--name", "sweep", "--reason", "r", "--yes", "--no-wait")
    operation = str(BulkOperation.objects.get().pk)
    stopped = call(command, "bulk", "stop", operation)
    assert stopped.stdout == (
        f"bulk operation {operation} is stopped (stopped by olga): 0 jobs cancelled\n"
    )
    run_page()
    assert {session.job(job_id)["state"] for job_id in jobs} == {"PENDING"}
    again = call(command, "bulk", "stop", operation)
    assert (again.exit_code, "has ended already [409]" in again.stderr) == (2, True)
    followed = call(command, "bulk", "show", operation, "--follow")
    assert followed.exit_code == 1
    assert call(command, "bulk", "show", "999999").exit_code == 2


def test_terminal_shows_the_jobs_prompts_and_follows(command: CliRunner, session: Session) -> None:
    jobs = submit(session, 3)
    words = ("bulk", "cancel", "--project", "default/default", "--reason", "wrong data")
    with terminal(*words) as (process, end):
        prompt = read_until(end, b"Cancel these jobs? [y/N]")
        assert b"3 jobs to cancel" in prompt
        assert str(jobs[0]).encode() in prompt
        assert not BulkOperation.objects.exists()
        os.write(end, b"y\n")
        read_until(end, b"0 of about 3 jobs cancelled")
        run_to_end()
        run_to_end()
        assert b"is done: 3 jobs cancelled" in read_until(end, b"is done: 3 jobs cancelled")
        assert process.wait(timeout=30) == 0
