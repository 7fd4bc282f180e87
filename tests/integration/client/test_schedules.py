"""`cellrun schedule` against the API."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from controlplane.models import Job, Schedule
from tests.integration.client.test_against_the_api import SPEC, call
from tests.integration.client.test_against_the_api import command as command
from tests.integration.client.test_against_the_api import served as served
from tests.integration.client.test_against_the_api import session as session

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def document(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump({**SPEC}))
    return str(path)


def test_schedule_is_set_shown_paused_run_and_deleted(command: CliRunner, document: str) -> None:
    options = ("--cron", "30 2 * * *", "--time-zone", "Europe/Berlin", "--overlap", "queue")
    made = call(command, "schedule", "set", "nightly", document, *options, "--set", "name=report")
    assert made.stdout.startswith("schedule nightly: next ")
    assert "02:30:00 CE" in made.stdout  # CET or CEST
    assert Schedule.objects.get().job["name"] == "report"
    listed = call(command, "schedule", "list").stdout
    assert "nightly" in listed
    assert "30 2 * * *" in listed
    call(command, "schedule", "pause", "nightly", "--reason", "audit")
    shown = call(command, "schedule", "show", "nightly").stdout
    assert "paused: audit" in shown
    assert "no instant has passed yet" in shown
    ran = json.loads(call(command, "schedule", "run", "nightly", "-o", "json").stdout)
    assert Job.objects.get().pk == ran["id"]
    history = json.loads(call(command, "schedule", "show", "nightly", "-o", "json").stdout)[
        "firings"
    ]
    assert [(it["outcome"], it["job"]) for it in history] == [("started", ran["id"])]
    call(command, "schedule", "resume", "nightly")
    refused = call(command, "schedule", "delete", "nightly")
    assert refused.exit_code != 0
    assert Schedule.objects.exists()
    call(command, "schedule", "delete", "nightly", "-y")
    assert not Schedule.objects.exists()


def test_describe_names_the_schedule_of_a_waiting_job(command: CliRunner, document: str) -> None:
    call(command, "schedule", "set", "nightly", document, "--cron", "30 2 * * *")
    ran = json.loads(call(command, "schedule", "run", "nightly", "-o", "json").stdout)
    for words in (("describe",), ("job",)):
        page = " ".join(call(command, *words, str(ran["id"])).stdout.split())
        assert "submitted by schedule nightly for 20" in page
    task = call(command, "describe", f"{ran['id']}/main.0").stdout
    assert "nightly" in task.partition("why it waits")[2]


def test_bad_cron_is_one_line(command: CliRunner, document: str) -> None:
    failed = call(command, "schedule", "set", "nightly", document, "--cron", "61 * * * *")
    assert failed.exit_code != 0
    assert "cron: is no cron expression: bad minute" in failed.stderr
