"""What the command prints while it waits and at the end, against the real API."""

import os
import re
import signal

import pytest
from typer.testing import CliRunner

from cellrun import Session
from controlplane.contract.states import TaskState
from controlplane.models import Job, Task
from controlplane.storage.folder import append_log
from tests.harness.terminal import read_until, terminal
from tests.integration.client.test_against_the_api import SPEC, call, make_attempt
from tests.integration.client.test_against_the_api import command as command
from tests.integration.client.test_against_the_api import served as served
from tests.integration.client.test_against_the_api import session as session

pytestmark = pytest.mark.django_db(transaction=True)


def test_run_prints_its_number_its_reason_and_prompts_at_an_interrupt(
    command: CliRunner, session: Session
) -> None:
    with terminal("run", "busybox", "--name", "train", "--", "true") as (process, end):
        shown = read_until(end, b"no placement pass has considered it yet")
        assert b"(train)" in shown
        assert b" waits: " in shown
        [job] = session.jobs()
        assert f"job {job['id']} (train)".encode() in shown
        process.send_signal(signal.SIGINT)
        read_until(end, b"[y/N] ")
        os.write(end, b"y\n")
        assert b"is killed" in read_until(end, b"is killed")
        assert process.wait(60) == 130
    assert session.job(job["id"])["state"] == "KILLED"


def test_a_filter_waits_for_all_open_jobs_that_match(command: CliRunner, session: Session) -> None:
    ids = [session.submit({**SPEC, "labels": {"sweep": "7"}})["id"] for _ in range(3)]
    session.submit({**SPEC, "labels": {"sweep": "8"}})
    session.cancel_job(ids.pop(0))  # has ended before
    with terminal("wait", "--label", "sweep=7") as (process, end):
        shown = read_until(end, f"job {ids[1]}".encode())
        for job_id in ids:
            session.cancel_job(job_id)
        shown += read_until(end, b"nothing ends like this")
        assert process.wait(60) == 1
    for job_id in ids:
        assert re.search(rf"job {job_id} \(sweep\) (\x1b\[[0-9;]*m)?killed".encode(), shown)
    none = call(command, "wait", "--label", "sweep=9")
    assert none.exit_code == 2
    assert none.stderr.startswith("cellrun: no open job matches;")
    for words in ((), ("7", "--name", "sweep")):
        assert call(command, "wait", *words).exit_code == 2


def test_failed_task_is_named_after_a_wait_and_its_log_command_works(
    command: CliRunner, session: Session
) -> None:
    detached = call(command, "run", "-d", "busybox", "--name", "train", "--", "false")
    job_id = int(detached.stdout)
    attempt = make_attempt(job_id)
    append_log(attempt.pk, "stderr", offset=0, content=b"first\nlast words\n")
    type(attempt).objects.update(state=TaskState.FAILED, exit_code=7)
    Task.objects.update(state=TaskState.FAILED, failure_reason="exit status 7")
    Job.objects.update(
        state=TaskState.FAILED, finished_at=attempt.finished_at, failure_reason="1 task failed"
    )
    waited = call(command, "wait", "train")
    assert waited.exit_code == 1
    assert f"job {job_id} (train) failed: 1 task failed" in waited.stderr
    assert f"{job_id}/main.0 failed on cell-1: exit status 7; its log: cellrun" in waited.stderr
    assert call(command, "status", "train", "--short").stdout == "failed\n"
    other = session.submit({**SPEC, "name": "other"})["id"]
    words = ("logs", str(job_id), str(other), "--failed", "--tail", "1", "--grep", "words")
    assert call(command, *words).stderr == "last words\n"
