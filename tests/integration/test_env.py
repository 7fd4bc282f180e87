"""The environment is refused at start, by name, if anything in it is unknown or malformed."""

from pathlib import Path

import pytest

from controlplane.config.env import (
    NO_DATABASE,
    ControlPlaneSettings,
    InvalidSettings,
    load_settings,
)

GOOD = {
    "CELLRUN_HOME": "/nonexistent/cellrun",
    "CELLRUN_SECRET_KEY": "k" * 32,
    "DATABASE_URL": "postgresql://user:p%40ss@db.example:5433/cells?sslmode=require",
    "CELERY_BROKER_URL": "redis://127.0.0.1:6379/0",
}


def load(**changes: str) -> ControlPlaneSettings:
    return load_settings({**GOOD, **changes})


def refusal(**changes: str) -> str:
    with pytest.raises(InvalidSettings) as refused:
        load(**changes)
    return str(refused.value)


def test_complete_environment_is_read() -> None:
    settings = load(CELLRUN_LEASE_SECONDS="45", CELLRUN_ADVISORY_LOCKS="false")
    assert settings.lease_seconds == 45
    assert settings.advisory_locks is False
    assert settings.artifact_root == Path("/nonexistent/cellrun/artifacts")
    database = settings.database
    assert (database.user, database.password, database.host) == ("user", "p@ss", "db.example")
    assert (database.port, database.name) == ("5433", "cells")
    assert database.options == {"sslmode": "require"}


@pytest.mark.parametrize(
    ("url", "folder"),
    [
        ("", "/nonexistent/cellrun/artifacts"),
        ("file:///srv/a%20b/", "/srv/a b"),
        ("s3://bucket", None),
        ("s3://bucket/some/prefix/", None),
        ("gs://bucket/prefix", None),
        ("az://container/prefix", None),
    ],
)
def test_store_is_a_folder_or_an_object_store(url: str, folder: str | None) -> None:
    settings = load(CELLRUN_STORE_URL=url)
    assert settings.has_object_store == (folder is None)
    assert folder is None or settings.store_folder == Path(folder)


def test_socket_folder_in_the_query_becomes_the_host() -> None:
    database = load(DATABASE_URL="postgresql://me@/cells?host=/run/pg").database
    assert (database.host, database.port) == ("/run/pg", "")


def test_unknown_name_is_refused_by_name() -> None:
    assert "CELLRUN_LEASE_SECOND: unknown setting" in refusal(CELLRUN_LEASE_SECOND="3")


def test_names_of_a_cell_and_of_a_task_are_accepted() -> None:
    load(CELLRUN_CELL_NAME="cell-1", CELLRUN_TASK_ID="7", CELLRUN_PORT_HTTP="80", OTHER="x")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("CELLRUN_DEBUG", "yes", "true or false"),
        ("CELLRUN_LEASE_SECONDS", "soon", "a number of seconds"),
        ("CELLRUN_LEASE_SECONDS", "nan", "a number of seconds"),
        ("CELLRUN_LEASE_SECONDS", "6", "at least twice CELLRUN_HEARTBEAT_SECONDS (10)"),
        ("CELLRUN_MAX_TASKS_PER_JOB", "0", "a whole number"),
        ("CELLRUN_MAX_TASKS_PER_JOB", "1e3", "a whole number"),
        ("CELLRUN_PUBLIC_URL", "localhost:8000", "an address like http://"),
        ("CELLRUN_STORE_URL", "/srv/files", "an address like s3://"),
        ("CELLRUN_STORE_URL", "s3://", "an address like s3://"),
        ("CELLRUN_STORE_URL", "s3://key@bucket", "an address like s3://"),
        ("CELLRUN_STORE_URL", "s3://bucket?region=x", "an address like s3://"),
        ("CELLRUN_STORE_URL", "file://host/folder", "an address like s3://"),
        ("CELLRUN_PUBLIC_URL", "http://[::1", "an address like http://"),
        ("CELLRUN_ALLOWED_HOSTS", "a,,b", "host names separated by commas"),
        ("CELLRUN_ARTIFACT_ROOT", __file__, "a folder"),
        ("CELLRUN_LOG_LEVEL", "loud", "one of DEBUG, INFO, WARNING, ERROR"),
        ("CELLRUN_PROCESS", "cell", "one of web,"),
        ("CELLRUN_OIDC_ISSUER", "http://login.example.org", "an address like https://"),
        ("CELLRUN_OIDC_ISSUER", "https://login.example.org/?a=b", "an address like https://"),
        ("CELLRUN_OIDC_ISSUER", "login.example.org", "an address like https://"),
        ("CELLRUN_OIDC_SCOPES", "profile groups", "with openid among them"),
        ("CELLRUN_OIDC_GROUPS", "team-a", "pairs like team-a=research"),
        ("CELLRUN_OIDC_GROUPS", "team-a=", "pairs like team-a=research"),
        ("CELLRUN_OIDC_GROUPS", "=research", "pairs like team-a=research"),
        ("CELLRUN_OIDC_GROUPS", "a=" + "g" * 151, "pairs like team-a=research"),
        ("CELLRUN_OIDC_OPERATOR_GROUPS", "a,,b", "names separated by commas"),
        ("DATABASE_URL", "mysql://db/x", "an address like postgresql://"),
        ("DATABASE_URL", "postgresql://db:port/x", "an address like postgresql://"),
        ("CELERY_BROKER_URL", "amqp://broker", "an address like redis://"),
        ("CELLRUN_SECRET_KEY", "short", "at least 32 unpredictable characters"),
        ("CELLRUN_SECRET_KEY_FALLBACKS", "short", "former keys of at least 32 characters"),
        ("CELLRUN_SECRET_KEY_FALLBACKS", "k" * 40 + ",", "former keys of at least 32"),
    ],
)
def test_malformed_value_is_refused_with_name_and_expected_form(
    name: str, text: str, expected: str
) -> None:
    message = refusal(**{name: text})
    assert f"{name}: expected " in message
    assert expected in message


def test_default_that_conflicts_with_a_setting_is_refused_by_name() -> None:
    assert refusal(CELLRUN_HEARTBEAT_SECONDS="20").splitlines()[1:] == [
        "  CELLRUN_LEASE_SECONDS: expected at least twice CELLRUN_HEARTBEAT_SECONDS (40), not 30"
    ]


def test_all_faults_are_reported_together() -> None:
    message = refusal(CELLRUN_DEBUG="1", CELLRUN_FOO="2", CELLRUN_SECRET_KEY="")
    for name in ("CELLRUN_DEBUG", "CELLRUN_FOO", "CELLRUN_SECRET_KEY"):
        assert name in message


OIDC = {
    "CELLRUN_OIDC_ISSUER": "https://login.example.org/realms/a/",
    "CELLRUN_OIDC_CLIENT_ID": "cellrun",
    "CELLRUN_OIDC_CLIENT_SECRET": "hunter2, and more",
}


def test_the_login_with_openid_is_on_with_three_settings() -> None:
    settings = load(
        **OIDC,
        CELLRUN_OIDC_GROUPS="/team a=research, cn=b=operations",
        CELLRUN_OIDC_OPERATOR_GROUPS="/ops, admins",
    )
    assert settings.has_oidc
    assert settings.oidc_issuer == OIDC["CELLRUN_OIDC_ISSUER"]  # the last slash belongs to it
    assert settings.oidc_groups == (("/team a", "research"), ("cn=b", "operations"))
    assert settings.oidc_operator_groups == ("/ops", "admins")
    assert "hunter2" not in repr(settings)
    assert not load().has_oidc
    assert load(CELLRUN_OIDC_ISSUER="http://127.0.0.1:8080").oidc_issuer


@pytest.mark.parametrize("missing", OIDC)
def test_web_refuses_an_incomplete_login_with_openid_and_others_ignore_it(missing: str) -> None:
    partial = {name: value for name, value in OIDC.items() if name != missing}
    assert f"{missing}: must be set" in refusal(**partial, CELLRUN_PROCESS="web")
    assert not load(**partial, CELLRUN_PROCESS="inbox").has_oidc


def test_secrets_are_omitted_from_errors_and_the_settings_repr() -> None:
    assert "hunter2" not in refusal(DATABASE_URL="mysql://me:hunter2@db/x")
    assert "hunter2" not in refusal(CELLRUN_SECRET_KEY_FALLBACKS="hunter2")
    former = f"{'hunter2' * 5},{'k' * 40}"
    settings = load(
        DATABASE_URL="postgresql://me:hunter2@db/x", CELLRUN_SECRET_KEY_FALLBACKS=former
    )
    assert settings.secret_key_fallbacks == ("hunter2" * 5, "k" * 40)
    shown = repr(settings)
    assert "hunter2" not in shown
    assert GOOD["CELLRUN_SECRET_KEY"] not in shown


def test_missing_settings_come_from_the_running_stack(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "secret-key").write_text("s" * 40 + "\n")
    (tmp_path / "run" / "env").write_text(
        "DATABASE_URL='postgresql://u:p@127.0.0.1:9/cellrun'\n"
        "CELERY_BROKER_URL=redis://127.0.0.1:8/0\n"
        "CELLRUN_URL=http://127.0.0.1:8123\n"
    )
    settings = load_settings({"CELLRUN_HOME": str(tmp_path)})
    assert settings.database.port == "9"
    assert settings.broker_url == "redis://127.0.0.1:8/0"
    assert settings.public_url == "http://127.0.0.1:8123"
    assert settings.secret_key == "s" * 40


def test_flower_does_not_start_without_a_login() -> None:
    environ = {
        "CELLRUN_PROCESS": "flower",
        "CELLRUN_SECRET_KEY": "k" * 48,
        "DATABASE_URL": "postgresql://db/cellrun",
        "CELERY_BROKER_URL": "redis://broker:6379/0",
    }
    with pytest.raises(InvalidSettings, match="FLOWER_BASIC_AUTH: Flower needs a login"):
        load_settings(environ)
    load_settings({**environ, "FLOWER_BASIC_AUTH": "oncall:x"})


def test_secrets_are_read_from_files(tmp_path: Path) -> None:
    values = {
        "CELLRUN_SECRET_KEY": "f" * 40,
        "CELLRUN_SECRET_KEY_FALLBACKS": "g" * 40,
        "DATABASE_URL": "postgresql://file@db/cells",
        "CELERY_BROKER_URL": "redis://from-file:6379/0",
    }
    environ = {"CELLRUN_HOME": "/nonexistent/cellrun"}
    for name, value in values.items():
        (tmp_path / name).write_text(value + "\n")
        environ[f"{name}_FILE"] = str(tmp_path / name)
    settings = load_settings(environ)
    assert settings.secret_key == "f" * 40
    assert settings.secret_key_fallbacks == ("g" * 40,)
    assert settings.database.user == "file"
    assert settings.broker_url == "redis://from-file:6379/0"


def test_unreadable_file_of_a_secret_is_the_only_fault_of_its_setting() -> None:
    environ = {name: value for name, value in GOOD.items() if name != "DATABASE_URL"}
    with pytest.raises(InvalidSettings) as refused:
        load_settings({**environ, "DATABASE_URL_FILE": "/nonexistent/url"})
    assert str(refused.value).splitlines()[1:] == [
        "  DATABASE_URL_FILE: /nonexistent/url cannot be used: No such file or directory"
    ]


def test_file_of_a_setting_that_is_no_secret_is_unknown() -> None:
    assert "CELLRUN_LEASE_SECONDS_FILE: unknown setting" in refusal(CELLRUN_LEASE_SECONDS_FILE="x")


@pytest.mark.parametrize("process", ["beat", "flower"])
def test_beat_and_flower_neither_need_nor_read_database_and_secret_key(
    process: str, tmp_path: Path
) -> None:
    environ = {"CELLRUN_PROCESS": process, "FLOWER_BASIC_AUTH": "oncall:x", **GOOD}
    unread = {"CELLRUN_SECRET_KEY", "DATABASE_URL"}
    without = {name: value for name, value in environ.items() if name not in unread}
    # Nor those of a stack in its folder, as manage.py does.
    (tmp_path / "run").mkdir()
    (tmp_path / "secret-key").write_text("s" * 40)
    (tmp_path / "run" / "env").write_text("DATABASE_URL=postgresql://u:p@127.0.0.1:9/cellrun\n")
    for given in (environ, without, {**without, "CELLRUN_HOME": str(tmp_path)}):
        settings = load_settings(given)
        assert settings.secret_key == ""
        assert settings.database == NO_DATABASE
        assert settings.broker_url == GOOD["CELERY_BROKER_URL"]


@pytest.mark.parametrize("process", ["web", "placement", "convergence", "inbox", "callbacks"])
@pytest.mark.parametrize("name", ["CELLRUN_SECRET_KEY", "DATABASE_URL", "CELERY_BROKER_URL"])
def test_other_processes_do_not_start_without_a_secret(process: str, name: str) -> None:
    assert f"{name}: expected" in refusal(**{"CELLRUN_PROCESS": process, name: ""})


def test_login_of_flower_may_be_in_a_file(tmp_path: Path) -> None:
    environ = {"CELLRUN_PROCESS": "flower", "CELERY_BROKER_URL": "redis://broker:6379/0"}
    (tmp_path / "login").write_text("oncall:x\n")
    load_settings({**environ, "FLOWER_BASIC_AUTH_FILE": str(tmp_path / "login")})
    with pytest.raises(InvalidSettings) as refused:
        load_settings({**environ, "FLOWER_BASIC_AUTH_FILE": str(tmp_path / "absent")})
    assert str(refused.value).count("FLOWER_BASIC_AUTH") == 1
