"""Accounts and tokens: made once, never seen again in clear, and bootstrap may be repeated."""

from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import CommandError

from controlplane.commands.tenancy import accounts
from controlplane.commands.tenancy.tokens import create_api_token, digest_of
from controlplane.domain.roles import Role
from controlplane.models import ApiToken, Domain, Pool, Project

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def bootstrap() -> str:
    output = StringIO()
    call_command("bootstrap", stdout=output)
    return output.getvalue()


@pytest.fixture(autouse=True)
def _nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ADMIN_USER", "ADMIN_PASSWORD", "OPERATOR_TOKEN", "TOKEN"):
        monkeypatch.delenv(f"CELLRUN_{name}", raising=False)
        monkeypatch.delenv(f"CELLRUN_{name}_FILE", raising=False)


def test_token_is_stored_as_a_digest_only() -> None:
    user, is_new = accounts.create_user(name="ann", password=None, is_operator=False)
    assert is_new
    assert not user.has_usable_password()
    token = create_api_token(user=user, name="laptop", role=Role.SUBMITTER, now=NOW)
    row = ApiToken.objects.get()
    assert row.digest == digest_of(token)
    assert token.startswith(row.prefix)
    assert token not in str(vars(row))


def test_short_token_is_refused() -> None:
    user, _ = accounts.create_user(name="ann", password=None, is_operator=False)
    with pytest.raises(ValueError, match="at least 32 characters"):
        create_api_token(user=user, name="x", role=Role.SUBMITTER, now=NOW, token="short")
    assert not ApiToken.objects.exists()


def test_bootstrap_writes_credentials_to_a_private_file_and_prints_none(tmp_path: Path) -> None:
    path, output = tmp_path / "credentials", StringIO()
    path.write_text("of an earlier attempt")
    call_command("bootstrap", credentials=path, stdout=output)
    text = path.read_text()
    values = [line.split()[-1] for line in text.splitlines()]
    assert path.stat().st_mode & 0o777 == 0o600
    assert [line.rpartition(" ")[0] for line in text.splitlines()] == [
        "operator's login admin /",
        "operator's token",
        "submitter's token",
    ]
    assert User.objects.get(username="admin").check_password(values[0])
    assert {digest_of(value) for value in values[1:]} == {
        token.digest for token in ApiToken.objects.all()
    }
    assert output.getvalue() == f"the generated values are in {path}\n"
    call_command("bootstrap", credentials=path, stdout=output)
    assert path.read_text() == text


def test_credentials_that_cannot_be_written_are_not_created(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"--credentials: .*absent"):
        call_command("bootstrap", credentials=tmp_path / "absent" / "credentials")
    assert not User.objects.exists()


def test_bootstrap_prints_generated_credentials_once() -> None:
    output = bootstrap()
    for role in ("operator's login admin /", "operator's token cr_", "submitter's token cr_"):
        assert role in output
    before = list(ApiToken.objects.values_list("digest", flat=True))
    password = User.objects.get(username="admin").password
    assert bootstrap() == "no password or token was generated\n"
    assert list(ApiToken.objects.values_list("digest", flat=True)) == before
    assert User.objects.get(username="admin").password == password
    assert (Domain.objects.count(), Project.objects.count(), Pool.objects.count()) == (1, 1, 1)


def test_bootstrap_takes_credentials_from_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in (("ADMIN_PASSWORD", "one password"), ("OPERATOR_TOKEN", "o" * 40)):
        (tmp_path / name).write_text(value + "\n")
        monkeypatch.setenv(f"CELLRUN_{name}_FILE", str(tmp_path / name))
    bootstrap()
    assert User.objects.get(username="admin").check_password("one password")
    assert ApiToken.objects.get(role="operator").digest == digest_of("o" * 40)


def test_bootstrap_does_nothing_if_a_file_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLRUN_ADMIN_PASSWORD_FILE", "/nonexistent/password")
    with pytest.raises(CommandError, match="CELLRUN_ADMIN_PASSWORD_FILE: /nonexistent/password"):
        bootstrap()
    assert not User.objects.exists()


def test_bootstrap_uses_credentials_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLRUN_ADMIN_USER", "olga")
    monkeypatch.setenv("CELLRUN_ADMIN_PASSWORD", "one password")
    monkeypatch.setenv("CELLRUN_OPERATOR_TOKEN", "o" * 40)
    monkeypatch.setenv("CELLRUN_TOKEN", "s" * 40)
    assert bootstrap() == bootstrap() == "no password or token was generated\n"
    olga = User.objects.get(username="olga")
    assert olga.is_superuser
    assert olga.check_password("one password")
    digests = {row.digest: row.role for row in ApiToken.objects.all()}
    assert digests == {
        digest_of("o" * 40): "operator",
        digest_of("s" * 40): "submitter",
    }


def test_bootstrap_refuses_a_short_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLRUN_TOKEN", "secret")
    with pytest.raises(CommandError, match="CELLRUN_TOKEN: a token has at least 32 characters"):
        bootstrap()
    assert not User.objects.exists()
