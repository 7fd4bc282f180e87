"""`cellrun secrets` against the API: values come from files, pipes and prompts, and never back."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cellrun import Session
from cellrun.cli import app
from controlplane.domain.jobs.secrets import read_registry
from controlplane.models import Domain, Project
from controlplane.queries.tenancy.access import find_project_place
from controlplane.queries.tenancy.secrets import open_secrets
from tests.integration.client.test_against_the_api import call
from tests.integration.client.test_against_the_api import command as command
from tests.integration.client.test_against_the_api import served as served
from tests.integration.client.test_against_the_api import session as session

pytestmark = pytest.mark.django_db(transaction=True)

VALUE = "hunter2-hunter2"


def value_of(name: str, project: str = "default") -> bytes:
    return open_secrets(find_project_place("default", project).project_id, [name]).values[name]


def test_a_secret_is_written_from_a_pipe_or_a_file_byte_for_byte(
    command: CliRunner, tmp_path: Path
) -> None:
    done = call(command, "secrets", "set", "token", typed=f" {VALUE}\n")
    assert (done.exit_code, done.stdout) == (0, "secret token is written (version 1)\n")
    assert value_of("token") == f" {VALUE}\n".encode()
    (tmp_path / "key").write_bytes(b"\x00\xff")
    done = call(command, "secrets", "set", "token", "--from-file", str(tmp_path / "key"))
    assert done.stdout == "secret token is written (version 2)\n"
    assert value_of("token") == b"\x00\xff"
    missing = call(command, "secrets", "set", "token", "--from-file", str(tmp_path / "none"))
    assert missing.exit_code == 2
    assert "No such file" in missing.stderr


def test_registry_option_stores_a_username_and_password(command: CliRunner) -> None:
    done = call(
        command, "secrets", "set", "hub", "--registry", "ann", "-o", "json", typed=VALUE + "\n"
    )
    assert done.exit_code == 0
    assert VALUE not in done.output
    login = read_registry(value_of("hub"))
    assert login is not None
    assert (login.username, login.password, login.server) == ("ann", VALUE, "docker.io")
    there = ("--registry", "ann", "--server", "registry.example.com:5000")
    assert call(command, "secrets", "set", "own", *there, typed=VALUE + "\n").exit_code == 0
    login = read_registry(value_of("own"))
    assert login is not None
    assert (login.password, login.server) == (VALUE, "registry.example.com:5000")
    listed = call(command, "secrets", "list").stdout.splitlines()
    assert [line.split()[-1] for line in listed] == [
        "REGISTRY",
        "docker.io",
        "registry.example.com:5000",
    ]
    alone = call(command, "secrets", "set", "own", "--server", "registry.example.com", typed="x")
    assert (alone.exit_code, "--registry" in alone.stderr) == (2, True)
    both = call(command, "secrets", "set", "hub", "--registry", "ann", "--from-file", "x")
    assert (both.exit_code, both.stderr.count("\n")) == (2, 1)


def test_terminal_prompts_for_the_value_without_echo(
    command: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellrun.commands.tenancy.secrets.is_terminal", lambda: True)
    done = call(command, "secrets", "set", "token", typed=f"{VALUE}\n{VALUE}\n")
    assert done.exit_code == 0
    assert "Value:" in done.stderr
    assert VALUE not in done.output
    assert value_of("token") == VALUE.encode()


def test_no_value_can_be_given_on_the_command_line(command: CliRunner) -> None:
    assert call(command, "secrets", "set", "token", VALUE).exit_code == 2
    assert call(command, "secrets", "set", "token", "--value", VALUE).exit_code == 2


def test_secrets_are_listed_and_deleted(command: CliRunner, session: Session) -> None:
    Project.objects.create(domain=Domain.objects.create(name="lab"), name="genes")
    assert call(command, "secrets", "list").stdout == "no secrets\n"
    session.put_secret("b", {"value": VALUE})
    session.put_secret("a", {"value": ""})
    session.put_secret("c", {"value": VALUE}, project="lab/genes")
    listed = call(command, "secrets", "list").stdout
    assert [line.split()[:4] for line in listed.splitlines()[1:]] == [
        ["a", "0", "1", "olga"],
        ["b", "15", "1", "olga"],
    ]
    elsewhere = call(command, "secrets", "list", "--project", "lab/genes", "-o", "json")
    assert [item["name"] for item in json.loads(elsewhere.stdout)] == ["c"]
    assert call(command, "secrets", "delete", "b", typed="n\n").exit_code == 1
    gone = call(command, "secrets", "delete", "b", "--yes")
    assert gone.stdout == "secret b is deleted\n"
    assert [item["name"] for item in session.secrets()] == ["a"]
    again = call(command, "secrets", "delete", "b", "--yes")
    assert (again.exit_code, again.stderr) == (
        2,
        "cellrun: the project has no secret b [404]\n",
    )
    assert call(command, "secrets", "delete", "c", "-y", "--project", "lab/genes").exit_code == 0


def test_every_command_has_output_and_help() -> None:
    for name in ("list", "set", "delete"):
        assert "--output" in CliRunner().invoke(app, ["secrets", name, "--help"]).stdout
