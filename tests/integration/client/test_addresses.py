"""Every way to name a job, a task or an attempt, with the commands that take it."""

import json
import os

import pytest
from typer.testing import CliRunner

from cellrun import ApiError, Session
from controlplane.models import BulkOperation
from controlplane.storage.folder import append_log
from tests.harness.terminal import read_until, terminal
from tests.integration.client.test_against_the_api import SPEC, call, make_attempt
from tests.integration.client.test_against_the_api import command as command
from tests.integration.client.test_against_the_api import served as served
from tests.integration.client.test_against_the_api import session as session
from tests.integration.client.test_bulk import run_to_end

pytestmark = pytest.mark.django_db(transaction=True)


def submit(session: Session, **fields: object) -> int:
    return session.submit({**SPEC, **fields})["id"]


def test_job_is_named_by_id_name_and_guid(command: CliRunner, session: Session) -> None:
    older, newer = submit(session), submit(session, guid="team/run-7")
    for address, expected in ((str(older), older), ("sweep", newer), ("team/run-7", newer)):
        shown = call(command, "job", address, "-o", "json")
        assert json.loads(shown.stdout)["id"] == expected, shown.stderr
    several = call(command, "job", str(older), "team/run-7", "-o", "json")
    assert [job["id"] for job in json.loads(several.stdout)] == [older, newer]
    wrong = call(command, "job", "swep")
    assert (wrong.exit_code, "no job with the name or guid 'swep'" in wrong.stderr) == (2, True)


def test_task_and_attempt_are_named_as_tables_show_them(
    command: CliRunner, session: Session
) -> None:
    job_id = submit(session, replicas=1)
    attempt = make_attempt(job_id)
    append_log(attempt.pk, "stdout", offset=0, content=b"hi\n")
    for address in (f"{job_id}/main.0", "sweep/0", "sweep/main", "sweep/main.0#1", "sweep#1"):
        printed = call(command, "logs", address)
        assert (printed.exit_code, printed.stdout) == (0, "hi\n"), printed.stderr
        assert call(command, "artifacts", address).stdout == "no artifacts\n"
    for address in (f"{job_id}/main.0", "sweep/main.0#1"):
        assert call(command, "history", address).exit_code == 0
        explained = call(command, "explain", address, "-o", "json")
        assert json.loads(explained.stdout)["task"] == attempt.task_id
    missing = call(command, "logs", "sweep/main.0#2")
    assert "has 1 attempt, and none with the number 2" in missing.stderr


def test_many_jobs_are_cancelled_and_deleted_at_once(command: CliRunner, session: Session) -> None:
    first, second, third = (submit(session, name=f"job-{n}") for n in range(3))
    wrong = call(command, "cancel", str(first), "job-9")
    assert wrong.exit_code == 2
    assert session.job(first)["state"] == "PENDING", "a wrong name changes nothing"
    done = call(command, "cancel", str(first), "job-1", str(first))
    assert done.stdout == f"job {first} is killed\njob {second} is killed\n"
    deleted = call(command, "delete", str(first), str(third), "job-1", "--yes")
    assert deleted.stdout == f"job {first} is deleted\njob {second} is deleted\n"
    assert deleted.exit_code == 2, "one of them has not ended"
    assert deleted.stderr.startswith(f"cellrun: job {third}: ")
    assert "takes the whole job" in call(command, "cancel", "job-2/main.0").stderr


def test_jobs_are_selected_by_a_filter_instead(command: CliRunner, session: Session) -> None:
    job_id, other = submit(session, labels={"sweep": "7"}), submit(session)
    refused = call(command, "cancel", "--label", "sweep=7", "--yes")
    assert (refused.exit_code, "--reason is missing" in refused.stderr) == (2, True)
    both = call(command, "cancel", str(job_id), "--label", "sweep=7")
    assert (both.exit_code, "not both" in both.stderr) == (2, True)
    neither = call(command, "cancel")
    assert (neither.exit_code, "name the jobs to cancel" in neither.stderr) == (2, True)
    assert not BulkOperation.objects.exists()
    words = ("cancel", "--label", "sweep=7", "--reason", "wrong data")
    with terminal(*words) as (process, end):
        assert b"1 job to cancel" in read_until(end, b"Cancel 1 job? [y/N]")
        os.write(end, b"y\n")
        read_until(end, b"1 jobs")
        run_to_end()
        assert b"is done: 1 job cancelled" in read_until(end, b"is done: 1 job cancelled")
        assert process.wait(30) == 0
    assert session.job(job_id)["state"] == "KILLED"
    assert session.job(other)["state"] == "PENDING"


def test_jobs_are_listed_by_id_guid_and_owner(session: Session) -> None:
    first, second = submit(session), submit(session, guid="G-1")

    def listed(**filters: str) -> list[int]:
        return [job["id"] for job in session.jobs(**filters)]

    assert listed(id=f"{first},{second},4711") == [second, first]
    for wrong in ("x", "0", f"{first},", ",".join(["1"] * 1001)):
        with pytest.raises(ApiError, match=r"id: must (be ids|have at most 1000 ids)"):
            listed(id=wrong)
    assert listed(guid="G-1") == [second]
    assert listed(guid="g-1") == []
    assert listed(owner="olga") == [second, first]
    assert listed(owner="ann") == []
    assert session.job(first)["owner"] == "olga"


def test_many_jobs_and_their_tasks_are_few_requests(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellrun.api.paths.MOST_IDS", 2)
    ids = [submit(session) for _ in range(3)]
    found = list(session.jobs_by_id([*ids, 4711], fields="id,state"))
    assert found == [{"id": job_id, "state": "PENDING"} for job_id in reversed(ids)]
    tasks = list(session.tasks_of_jobs(ids, fields="job,index"))
    assert {task["job"] for task in tasks} == set(ids)
    assert len(list(session.tasks_of_jobs(ids, limit=2))) == 2
    assert list(session.tasks_of_jobs(ids, state="running")) == []
