"""`cellrun-cell join` names each problem of a host and its remedy, and then writes nothing."""

import os
import socket
import stat
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.core.management import call_command

from controlplane.config.stack.parts.ports import free_port
from controlplane.contract.wire import keys
from controlplane.contract.wire.join_token import JoinToken
from tests.harness.web import Answer, Request, Web
from workers import clock
from workers.__main__ import main
from workers.config import CellConfig

KEY = b"k" * keys.KEY_BYTES


class Host:
    """Joins with web of the test as the control plane; `folder` gets the files."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: object) -> None:
        self.folder, self.web = folder, Web()
        self._patch, self._capture = monkeypatch, capsys
        self.status, self.signed_status = 200, 404
        self.headers: dict[str, str] = {}
        self.web.route = self._route
        self.broker = os.environ["CELERY_BROKER_URL"]

    def _route(self, request: Request) -> Answer:
        if request.path == "/healthz":
            return Answer(self.status, b"ok", self.headers)
        return Answer(self.signed_status, b'{"detail": "no such attempt"}')

    def join(self, *options: str, address: str = "", token: str = "") -> tuple[int, str]:
        """Return the exit code and all that is printed."""
        token = token or JoinToken("cell-7", KEY, self.broker).encode()
        arguments = ["join", address or self.web.url, token, "--folder", str(self.folder)]
        arguments += ["--home", str(self.folder / "home"), "--driver", "process", *options]
        self._patch.setattr(sys, "argv", ["cellrun-cell", *arguments])
        code = main()
        printed = self._capture.readouterr()  # type: ignore[attr-defined]
        return code, printed.out + printed.err

    def refusal(self, *options: str, address: str = "", token: str = "") -> str:
        """What is printed when nothing is written."""
        code, text = self.join(*options, address=address, token=token)
        assert code != 0
        assert "the cell was not joined" in text
        assert not (self.folder / "cells").exists()
        return text


@pytest.fixture
def host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Host]:
    made = Host(tmp_path / "etc", monkeypatch, capsys)
    with made.web:
        yield made


def test_files_have_the_settings_and_are_private(host: Host) -> None:
    code, text = host.join("--installation", "production")
    assert code == 0, text
    settings, key = (host.folder / "cells" / f"cell-7.{kind}" for kind in ("env", "key"))
    assert stat.S_IMODE(settings.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.stat().st_mode) & 0o027 == 0
    assert stat.S_IMODE(settings.parent.stat().st_mode) & 0o027 == 0
    environ = dict(line.split("=", 1) for line in settings.read_text().splitlines())
    config = CellConfig.from_env(environ)
    assert (config.name, config.key, config.broker_url) == ("cell-7", KEY, host.broker)
    assert (config.control_url, config.installation) == (host.web.url, "production")


def test_no_secret_is_printed(host: Host) -> None:
    token = JoinToken("cell-7", KEY, host.broker).encode()
    _, text = host.join()
    assert keys.encode_key(KEY) not in text
    assert token not in text


def test_token_may_come_from_standard_input(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    token = JoinToken("cell-7", KEY, host.broker).encode()
    monkeypatch.setattr(sys, "stdin", StringIO(token + "\n"))
    assert host.join(token="-")[0] == 0


def test_changed_settings_are_replaced_only_on_request(host: Host) -> None:
    assert host.join()[0] == 0
    assert host.join()[0] == 0
    settings = host.folder / "cells" / "cell-7.env"
    settings.write_text(settings.read_text() + "CELLRUN_CELL_LABELS=zone=a\n")
    code, text = host.join()
    assert code == 1
    assert f"{settings} exists with other settings" in text
    assert "zone=a" in settings.read_text()
    assert host.join("--replace")[0] == 0
    assert "zone=a" not in settings.read_text()


@pytest.mark.parametrize(
    ("token", "words"),
    [
        ("cr_something-else", "a join token starts with crj_"),
        (JoinToken("cell-7", KEY, "redis://r/0").encode()[:-20], "incomplete or damaged"),
        ("crj_" + "é", "incomplete or damaged"),
        (JoinToken("../../x", KEY, "redis://r/0").encode(), "not the name of a cell"),
    ],
)
def test_malformed_token_is_refused_unrepeated(host: Host, token: str, words: str) -> None:
    text = host.refusal(token=token)
    assert words in text
    assert token not in text


@pytest.mark.parametrize("name", ["Bad Name", "../a", "a\nb", "x" * 64])
def test_name_that_no_installation_has_is_refused_before_anything_is_written(
    host: Host, name: str
) -> None:
    assert "--installation" in host.refusal("--installation", name)


def test_missing_engine_is_named_with_its_address(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    text = host.refusal("--driver", "docker")
    assert "engine: no container engine answers at unix:///nonexistent/docker.sock" in text
    assert "start Docker Engine or Podman" in text


def test_web_that_is_not_there_is_named(host: Host) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    assert f"web: {address} refuses the connection" in host.refusal(address=address)


def test_web_with_an_unknown_name_is_named(host: Host) -> None:
    text = host.refusal(address="http://web.invalid:8000")
    assert "web: the name web.invalid has no address on this host" in text


def test_web_that_does_not_answer_is_named(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.join.checks.ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert "does not answer within 0.2 s" in host.refusal(address=address)


def test_certificate_that_is_not_trusted_is_named(host: Host) -> None:
    """Here web has none at all, which is the simplest failure of TLS."""
    text = host.refusal(address=host.web.url.replace("http:", "https:"))
    assert "certificate" in text or "cannot be reached" in text


def test_redirect_is_named_with_its_target(host: Host) -> None:
    host.status, host.headers = 301, {"Location": "https://cellrun.example.com/healthz"}
    assert "redirects to https://cellrun.example.com: use that address" in host.refusal()


@pytest.mark.parametrize(
    ("status", "words"), [(400, "CELLRUN_ALLOWED_HOSTS"), (404, "answers with status 404")]
)
def test_answer_that_is_not_that_of_web_is_explained(host: Host, status: int, words: str) -> None:
    host.status = status
    assert words in host.refusal()


def test_wrong_clock_is_a_problem(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "wall_seconds", lambda now=clock.wall_seconds: now() + 4000)
    assert "clock: this host is 4000 s ahead of web's clock" in host.refusal()


def test_slightly_wrong_clock_is_a_note(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "wall_seconds", lambda now=clock.wall_seconds: now() - 20)
    code, text = host.join()
    assert code == 0
    assert "note     clock: this host is" in text


def test_key_that_web_does_not_accept_is_named(host: Host) -> None:
    host.signed_status = 401
    text = host.refusal()
    assert "key: web does not accept the key of cell-7" in text
    assert "enroll_cell cell-7 --join-token" in text


def test_redis_that_is_not_there_is_named_without_its_password(host: Host) -> None:
    port = free_port()
    host.broker = f"redis://:hunter2@127.0.0.1:{port}/0"
    text = host.refusal()
    assert f"broker: Redis at 127.0.0.1:{port} refuses the connection" in text
    assert "hunter2" not in text


def test_redis_that_refuses_the_login_is_named(host: Host) -> None:
    parts = urlsplit(host.broker)
    host.broker = parts._replace(netloc=f"cell-7:hunter2@{parts.hostname}:{parts.port}").geturl()
    text = host.refusal()
    assert f"Redis at {parts.hostname}:{parts.port} refuses the login in the token" in text
    assert "hunter2" not in text


def test_redis_of_the_control_planes_own_host_is_explained(host: Host) -> None:
    host.broker = "redis://127.0.0.1:6379/0"
    text = host.refusal(address="http://192.0.2.1:8000")
    assert "names Redis at 127.0.0.1:6379, which is this host, but web is elsewhere" in text


def test_all_problems_are_named_at_once(host: Host) -> None:
    host.broker, host.status = f"redis://127.0.0.1:{free_port()}/0", 404
    text = host.refusal()
    assert text.count("problem  ") == 2


@pytest.mark.django_db
def test_token_of_enroll_cell_has_the_key_that_it_prints() -> None:
    def printed(*options: str) -> str:
        output = StringIO()
        call_command("enroll_cell", "cell-7", *options, stdout=output)
        return output.getvalue().strip()

    call_command("bootstrap", "--quiet")
    key, token = printed(), JoinToken.decode(printed("--join-token"))
    assert (token.cell, keys.encode_key(token.key)) == ("cell-7", key)
    assert token.broker_url == os.environ["CELERY_BROKER_URL"]
    url = "rediss://cell-7:secret@redis.example.com:6380/0"
    assert JoinToken.decode(printed("--join-token", "--broker-url", url)).broker_url == url
