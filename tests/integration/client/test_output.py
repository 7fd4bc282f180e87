"""`--output` of the command against the API: documents, names for other commands, and queries."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from cellrun import Session
from controlplane import clock
from controlplane.commands.cells.operate import enroll_cell
from tests.harness.terminal import read_until, terminal
from tests.integration.client.test_against_the_api import SPEC, call
from tests.integration.client.test_against_the_api import command as command
from tests.integration.client.test_against_the_api import served as served
from tests.integration.client.test_against_the_api import session as session

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    "words",
    [
        ["jobs"],
        ["ps"],
        ["cells"],
        ["pools"],
        ["queue", "default"],
        ["quota"],
        ["usage"],
        ["audit"],
        ["whoami"],
        ["token", "list"],
        ["user", "list"],
        ["project", "list"],
        ["member", "list", "--project", "default/default"],
        ["service-account", "list", "--project", "default/default"],
        ["secrets", "list"],
        ["schedule", "list"],
        ["cache", "list"],
        ["bulk", "list"],
        ["notifications", "list"],
        ["job", "sweep"],
        ["status", "sweep"],
        ["history", "sweep"],
        ["explain", "sweep"],
        ["artifacts", "sweep"],
    ],
)
def test_what_lists_or_shows_has_each_form(
    session: Session, command: CliRunner, words: list[str]
) -> None:
    session.submit(SPEC)
    enroll_cell(name="cell-1", now=clock.now())
    document = json.loads(call(command, *words, "-o", "json").stdout)
    as_yaml = yaml.safe_load(call(command, *words, "-o", "yaml").stdout)
    assert type(as_yaml) is type(document)
    [whole] = call(command, *words, "-o", "jsonpath=$").stdout.splitlines()
    assert type(json.loads(whole)) is type(document)
    for form in ("table", "wide"):
        shown = call(command, *words, "-o", form)
        assert (shown.exit_code, shown.stdout != "") == (0, True), shown.output


def test_names_are_addresses_for_other_commands(session: Session, command: CliRunner) -> None:
    ids = [session.submit(SPEC)["id"] for _ in range(2)]
    names = call(command, "jobs", "--state", "pending", "-o", "name").stdout.split()
    assert names == [str(job_id) for job_id in reversed(ids)]
    done = call(command, "cancel", *names, "-o", "jsonpath=[*].id")
    assert (done.exit_code, done.stdout.split()) == (0, names)
    assert call(command, "pools", "-o", "name").stdout == "default\n"


def test_queries_of_the_documentation_select_values(session: Session, command: CliRunner) -> None:
    session.submit({**SPEC, "name": "train-sweep", "labels": {"team": "ml"}})
    enroll_cell(name="cell-1", now=clock.now())
    shown = call(command, "status", "train-sweep", "-o", "jsonpath=.state")
    assert shown.stdout == "PENDING\n"
    shown = call(command, "jobs", "--label", "team=ml", "-o", "jsonpath=[*].name")
    assert shown.stdout == "train-sweep\n"
    free = "jsonpath=[?@.free.cpu >= 8].name"
    assert call(command, "cells", "-o", free).exit_code == 0
    count = call(command, "jobs", "-o", "jsonpath={[0].task_status_count.main.phase.PENDING}")
    assert count.stdout == "3\n"


def test_a_terminal_shows_the_wide_table(session: Session, command: CliRunner) -> None:
    session.submit({**SPEC, "guid": "team/nightly", "labels": {"team": "ml"}})
    with terminal("jobs", "-o", "wide") as (_, reader):
        shown = read_until(reader, b"team=ml").decode()
    assert "team/nightly" in shown
    with terminal("jobs") as (_, reader):
        assert "team/nightly" not in read_until(reader, b"end of output").decode()
