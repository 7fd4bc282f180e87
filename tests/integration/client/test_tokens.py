"""`cellrun token`, `user` and `whoami` against the API: a second person gets access."""

import pytest
from typer.testing import CliRunner

from cellrun import Session
from controlplane.models import ApiToken
from tests.integration.client.test_against_the_api import call
from tests.integration.client.test_against_the_api import command as command
from tests.integration.client.test_against_the_api import served as served
from tests.integration.client.test_against_the_api import session as session

pytestmark = pytest.mark.django_db(transaction=True)


def test_operator_gives_a_second_person_access_and_takes_it_away(
    command: CliRunner, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = call(command, "user", "create", "bob")
    assert (done.exit_code, done.stdout) == (0, "user bob is active\n")
    done = call(command, "token", "create", "laptop", "--user", "bob", "--days", "30")
    token = done.stdout.strip()
    with monkeypatch.context() as bobs:
        bobs.setenv("CELLRUN_TOKEN", token)
        shown = call(command, "whoami").stdout
        assert shown.startswith(f"bob at {session.url}\nrole submitter · token laptop · expires 20")
        refused = call(command, "user", "list")
        assert refused.exit_code == 2
        assert "operator" in refused.stderr
        assert call(command, "token", "list").stdout.count("bob") == 1
        call(command, "user", "deactivate", "olga")
    listed = call(command, "token", "list", "--user", "bob").stdout
    assert token not in listed
    assert token[:8] in listed
    made = ApiToken.objects.get(name="laptop")
    done = call(command, "token", "revoke", str(made.pk), "--yes")
    assert (done.exit_code, done.stdout) == (0, f"token {made.pk} is revoked\n")
    with monkeypatch.context() as bobs:
        bobs.setenv("CELLRUN_TOKEN", token)
        refused = call(command, "whoami")
        assert refused.exit_code == 2
        assert "unknown or has expired" in refused.stderr


def test_users_are_listed_with_role_and_state(command: CliRunner) -> None:
    call(command, "user", "create", "bob")
    call(command, "user", "deactivate", "bob")
    lines = [line.split() for line in call(command, "user", "list").stdout.splitlines()]
    assert lines[1:] == [["bob", "manager", "no"], ["olga", "operator", "yes"]]


def test_revocation_requires_confirmation(command: CliRunner) -> None:
    call(command, "token", "create", "laptop")
    token = ApiToken.objects.get(name="laptop")
    call(command, "token", "revoke", str(token.pk), typed="n\n")
    assert ApiToken.objects.filter(pk=token.pk).exists()


def test_operator_lists_the_audit_log(command: CliRunner) -> None:
    call(command, "user", "create", "bob")
    call(command, "user", "deactivate", "bob")
    done = call(command, "audit", "--subject", "user bob")
    assert done.exit_code == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[line.index("token") + 3] for line in lines[1:]] == ["change.user", "create.user"]
    listed = call(command, "audit", "--action", "change.user", "-o", "json")
    assert '"is_active": false' in listed.stdout
    assert call(command, "audit", "--actor", "nemo").stdout == "no lines\n"
