"""`cellrun project`, `member` and `service-account`, and the commands of docs/projects.md."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cellrun import Session
from controlplane.models import ApiToken, Job, Membership, Pool, Project, Quota, StoredTotal
from tests.integration.client.test_against_the_api import call
from tests.integration.client.test_against_the_api import command as command
from tests.integration.client.test_against_the_api import served as served
from tests.integration.client.test_against_the_api import session as session

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = Path(__file__).parents[3] / "docs" / "projects.md"


def test_every_command_of_the_page_works(
    command: CliRunner, session: Session, tmp_path: Path
) -> None:
    Pool.objects.update(pending_timeout_seconds=None)
    text = PAGE.read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 7
    programs = Path(sys.executable).parent
    # `-x`, so that a failure shows the command; a failed substitution ends the script as well.
    done = subprocess.run(
        ["bash", "-euxc", "\n".join(blocks)],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    submitters = Job.objects.values_list("owner__username", "project__name")
    assert set(submitters) == {("research-dev", "vision"), ("vision-ci", "vision")}
    listed = done.stdout.partition("manager of domain research")[2]
    assert listed.rstrip().endswith("service account vision-ci is deleted")
    assert "submitter of project research/vision" in listed
    assert "no jobs" in listed
    assert Project.objects.get(name="speech").archived_at is not None
    assert set(Membership.objects.values_list("user__username", "role")) == {
        ("research-lead", "manager"),
        ("sales-lead", "manager"),
    }
    assert Quota.objects.get(domain__name="research").resources["cpu_millis"] == 64_000
    assert not ApiToken.objects.filter(user__username="vision-ci").exists()


def test_projects_are_shown_with_what_the_store_has_for_them(command: CliRunner) -> None:
    StoredTotal.objects.create(project=Project.objects.get(), total_bytes=3 * 2**19)
    assert call(command, "quota", "project", "default", "--set", "stored_bytes=2Gi").exit_code == 0
    shown = call(command, "project", "show", "default").stdout
    assert shown.endswith(" · stored: 1.5 MiB of 2.0 GiB\n")
    for words in (("project", "list"), ("quota",), ("quota", "project", "default")):
        assert "1.5 MiB of 2.0 GiB" in call(command, *words).stdout


def test_projects_are_created_listed_and_archived(command: CliRunner) -> None:
    done = call(command, "project", "create", "research/vision")
    assert (done.exit_code, done.stdout) == (0, "project research/vision exists\n")
    lines = [line.split() for line in call(command, "project", "list").stdout.splitlines()]
    assert lines[1:] == [
        ["default/default", "operator", "no"],
        ["research/vision", "operator", "no"],
    ]
    assert call(command, "project", "archive", "research/vision").exit_code == 0
    shown = call(command, "project", "show", "research/vision").stdout
    assert shown == "project research/vision is archived · your role is operator\n"
    done = call(command, "project", "unarchive", "research/vision")
    assert done.stdout == "project research/vision is active\n"


@pytest.mark.parametrize("verb", ["archive", "unarchive", "show"])
def test_misspelt_project_is_reported_and_not_created(command: CliRunner, verb: str) -> None:
    done = call(command, "project", verb, "research/visoin")
    assert done.exit_code == 2
    assert "there is no project research/visoin" in done.stderr
    assert Project.objects.count() == 1


def test_creation_reports_that_a_project_is_archived(command: CliRunner) -> None:
    call(command, "project", "create", "vision")
    call(command, "project", "archive", "vision")
    done = call(command, "project", "create", "vision")
    assert done.stdout == "project default/vision exists, and is archived\n"


@pytest.mark.parametrize("name", ["", "Research", "research/", "/vision", "a b/c", "a/b/c"])
def test_name_that_no_project_can_have_is_refused(command: CliRunner, name: str) -> None:
    done = call(command, "project", "create", name)
    assert done.exit_code == 2
    assert "use lower-case letters" in done.stderr
    assert "Not Found" not in done.stderr


def test_empty_name_of_a_member_is_refused(command: CliRunner) -> None:
    done = call(command, "member", "add", "--project", "default", "--user", "", "--role", "viewer")
    assert (done.exit_code, "a name is empty" in done.stderr) == (2, True)


def test_members_are_added_listed_and_removed(command: CliRunner) -> None:
    call(command, "user", "create", "user-1")
    where = ("--project", "default", "--user", "user-1")
    done = call(command, "member", "add", *where, "--role", "viewer")
    assert done.stdout == "user user-1 has the role viewer on project default\n"
    listed = call(command, "member", "list", "--project", "default").stdout.splitlines()
    assert listed[1].split()[:3] == ["user", "user-1", "viewer"]
    assert call(command, "member", "remove", *where).exit_code == 0
    assert call(command, "member", "list", "--project", "default").stdout == "no members\n"
    assert call(command, "member", "remove", *where).exit_code == 2


def test_auditors_are_added_listed_and_removed(command: CliRunner) -> None:
    call(command, "user", "create", "user-1")
    done = call(command, "member", "add", "--auditors", "--user", "user-1")
    assert done.stdout == "user user-1 has the role auditor on the installation\n"
    assert "user-1" in call(command, "member", "list", "--auditors").stdout
    assert call(command, "member", "remove", "--auditors", "--user", "user-1").exit_code == 0
    assert call(command, "member", "list", "--auditors").stdout == "no members\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("list",), "exactly one of --project"),
        (("list", "--project", "a", "--domain", "b"), "exactly one of --project"),
        (("add", "--project", "a", "--role", "viewer"), "exactly one of --user"),
        (("add", "--project", "a", "--user", "b"), "--role is required"),
        (("add", "--auditors", "--user", "b", "--role", "viewer"), "--role is required"),
    ],
)
def test_contradictory_options_are_refused(
    command: CliRunner, words: tuple[str, ...], expected: str
) -> None:
    done = call(command, "member", *words)
    assert done.exit_code == 2
    assert expected in done.stderr


def test_service_account_gets_a_token_limited_to_its_project(
    command: CliRunner, session: Session
) -> None:
    done = call(command, "service-account", "create", "robot", "--project", "default")
    assert done.stdout == "service account robot has the role submitter on default\n"
    assert "robot" in call(command, "service-account", "list", "--project", "default").stdout
    made = call(command, "token", "create", "ci", "--user", "robot").stdout.strip()
    assert made
    listed = call(command, "token", "list", "--project", "default/default").stdout
    assert "default/default" in listed
    assert session.tokens(user="robot")[0]["projects"] == ["default/default"]
    delete = ("service-account", "delete", "robot", "--project", "default")
    assert call(command, *delete, typed="n\n").exit_code == 1
    assert call(command, *delete, "--yes").exit_code == 0
    assert session.service_accounts("default") == []


def test_token_is_limited_to_the_named_projects(command: CliRunner, session: Session) -> None:
    call(command, "project", "create", "research/vision")
    names = ("--project", "research/vision", "--project", "default")
    assert call(command, "token", "create", "ci", *names).exit_code == 0
    assert session.tokens()[0]["projects"] == ["default/default", "research/vision"]


def test_projects_of_a_token_are_counted_after_the_role_on_them_ends(
    command: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    call(command, "project", "create", "research/vision")
    call(command, "user", "create", "bob")
    role = ("--project", "research/vision", "--user", "bob")
    call(command, "member", "add", *role, "--role", "submitter")
    token = call(command, "token", "create", "laptop", "--user", "bob").stdout.strip()
    with monkeypatch.context() as bobs:
        bobs.setenv("CELLRUN_TOKEN", token)
        bound = call(command, "token", "create", "ci", "--project", "research/vision").stdout
        assert "research/vision" in call(command, "token", "list").stdout
    assert call(command, "member", "remove", *role).exit_code == 0
    for value in (token, bound.strip()):
        with monkeypatch.context() as bobs:
            bobs.setenv("CELLRUN_TOKEN", value)
            listed = call(command, "token", "list").stdout
            shown = call(command, "whoami").stdout
        assert "1 other project" in listed
        assert "vision" not in listed + shown
    assert "token limited to 1 other project" in shown
