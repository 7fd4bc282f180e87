"""Secrets reach only the task that names them, as a file in memory or as a variable."""

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from controlplane.contract.messages.launch_context import LaunchContext
from controlplane.contract.messages.task_options import SecretUse
from controlplane.contract.states import FailureKind
from controlplane.contract.wire import keys
from tests.conformance.kit import DockerKit, Kit, until
from tests.conformance.test_files import ROOT
from tests.harness.web import Answer, Request, Web
from workers.attempt.events import EndedEvent
from workers.attempt.outcome import SECRET, WEB
from workers.drivers.registry import make_driver
from workers.secret_folder import default_folder, is_in_memory

TOKEN, KEY = b"hush-hush token", bytes(range(256)) * 256
FILE = SecretUse("key", path="/run/secrets/key")
VARIABLE = SecretUse("token", env="TOKEN")
PRINT = f'printf %s "$TOKEN" | sha256sum; sha256sum < {ROOT}/run/secrets/key'


class Briefer:
    """What web knows; answers a cell as web does, sealed for it."""

    def __init__(self, web: Web) -> None:
        self.secrets = {"token": TOKEN, "key": KEY}
        self.more: dict[str, Any] = {}
        self.url = web.url
        web.route = self._answer

    def _answer(self, request: Request) -> Answer:
        if not request.path.endswith("/briefing"):
            return Answer(404)  # output: it is kept here and nowhere else
        uid = request.path.split("/")[-2]
        secrets = {name: base64.b64encode(value).decode() for name, value in self.secrets.items()}
        text = json.dumps(LaunchContext(secrets=secrets, **self.more).body()).encode()
        sealer, nonce = ChaCha20Poly1305(keys.mac_key(b"k" * 32, keys.SEAL)), b"n" * 12
        mac = request.headers["X-Cellrun-Mac"]
        about = keys.about_answer(cell="cell-1", attempt=uid, endpoint="briefing", mac=mac)
        return Answer(200, nonce + sealer.encrypt(nonce, text, about.encode()))


@pytest.fixture
def briefer(web: Web) -> Briefer:
    return Briefer(web)


@pytest.fixture
def kit(real_kit: Kit, briefer: Briefer) -> Iterator[Kit]:
    """A kit whose cell uses the briefer; nothing of its secrets is left in memory."""
    begin_again(real_kit, briefer)
    yield real_kit
    for found in list(real_kit.driver.find()):
        real_kit.driver.remove(found.uid)
    until(lambda: not folder_of(real_kit).exists())


def begin_again(kit: Kit, briefer: Briefer, **changes: Any) -> None:
    """End the cell's process, and begin a successor that uses the briefer."""
    kit.driver.close()
    config = kit.config(control_url=briefer.url, **changes)
    kit.driver = make_driver(config, kit.events, back_off=(0.05, 0.1))


def folder_of(kit: Kit) -> Path:
    config = kit.config()
    return default_folder(config.installation, config.name, config.home)


def ran(kit: Kit, script: str, *uses: SecretUse, **spec: Any) -> EndedEvent:
    launch = kit.launch("sh", "-c", script, secrets=uses, **spec)
    kit.driver.start(launch)
    return kit.events.ended(launch.uid)


def stands_in(folder: Path, *values: bytes) -> list[Path]:
    """The files in `folder` that hold one of the values, be it encoded."""
    signs = [sign for value in values for sign in (value, base64.b64encode(value))]
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
        if any(sign in path.read_bytes() for sign in signs)
    ]


def test_secrets_are_provided_as_file_and_variable(kit: Kit) -> None:
    ended = ran(kit, PRINT, FILE, VARIABLE, user="1000:1000")
    assert ended.exit_code == 0, ended
    digests = [hashlib.sha256(value).hexdigest() for value in (TOKEN, KEY)]
    assert [line.split()[0] for line in kit.log(ended.uid).splitlines()] == digests
    assert ended.usage is not None
    assert "secrets" in ended.usage["steps"]


def test_secret_file_stays_in_memory_and_is_removed_with_its_attempt(kit: Kit) -> None:
    launch = kit.launch("sleep", "300", secrets=(FILE,))
    kit.driver.start(launch)
    kit.events.started(launch.uid)
    folder = folder_of(kit)
    assert is_in_memory(folder / launch.uid)
    assert stands_in(folder, KEY) == [folder / launch.uid / "0"]
    assert stands_in(kit.home, KEY) == []
    kit.driver.stop(launch.uid, grace_seconds=0, force=True)
    kit.events.ended(launch.uid)
    kit.driver.remove(launch.uid)
    until(lambda: not folder.exists())


def test_workspaces_are_private_to_the_cell_user(kit: Kit) -> None:
    assert (kit.home / "work").stat().st_mode & 0o777 == 0o700


def test_successor_keeps_secret_files_of_running_attempts_until_their_end(
    kit: Kit, briefer: Briefer
) -> None:
    script = f"echo ready; until [ -e {ROOT}/tmp/go ]; do sleep 0.05; done; {PRINT}"
    launch = kit.launch("sh", "-c", script, secrets=(FILE,))
    kit.driver.start(launch)
    kit.wait_until_ready(launch.uid)
    briefer.secrets = {}  # what runs keeps what it was given
    orphan = folder_of(kit) / "stranger"
    orphan.mkdir()
    begin_again(kit, briefer)
    assert not orphan.exists()
    kit.driver.adopt(launch)
    kit.events.started(launch.uid)
    if isinstance(kit, DockerKit):
        made = kit.outside.exec_create(f"cellrun-{launch.uid}", ["touch", "/tmp/go"])
        kit.outside.exec_start(made["Id"])
    else:
        (go,) = kit.home.glob("work/*/root")
        (go / "tmp").mkdir(exist_ok=True)
        (go / "tmp" / "go").touch()
    ended = kit.events.ended(launch.uid)
    assert hashlib.sha256(KEY).hexdigest() in kit.log(ended.uid)


@pytest.mark.parametrize(
    ("secrets", "more", "use", "kind", "reason", "words"),
    [
        ({}, {"missing": ("key",)}, FILE, FailureKind.USER, SECRET, "has no key"),
        ({}, {"unusable": ("hub",)}, FILE, FailureKind.USER, SECRET, "hub is not a registry login"),
        ({"token": b"\xff"}, {}, VARIABLE, FailureKind.USER, SECRET, "TOKEN cannot hold token"),
        ({"token": b"hush\0"}, {}, VARIABLE, FailureKind.USER, SECRET, "TOKEN cannot hold token"),
        ({}, {}, FILE, FailureKind.SYSTEM, WEB, "did not send the value of key"),
    ],
)
def test_unavailable_secret_ends_the_attempt_with_the_reason(
    kit: Kit,
    briefer: Briefer,
    secrets: Any,
    more: Any,
    use: Any,
    kind: Any,
    reason: Any,
    words: Any,
) -> None:
    briefer.secrets, briefer.more = secrets, more
    ended = ran(kit, "true", use)
    assert (ended.failure_kind, ended.reason, ended.started_at) == (kind, reason, None)
    assert ended.message is not None
    assert words in ended.message
    assert "hush" not in ended.message


def test_secret_is_not_written_to_a_folder_on_disk(
    kit: Kit, briefer: Briefer, tmp_path: Path
) -> None:
    begin_again(kit, briefer, secrets=Path("/proc/cellrun-secrets"))
    ended = ran(kit, "true", FILE)
    assert (ended.failure_kind, ended.reason) == (FailureKind.SYSTEM, SECRET)
    begin_again(kit, briefer)


# ----------------------------------------------------------------------------- containers


@pytest.fixture
def container_kit(docker_kit: DockerKit, briefer: Briefer) -> DockerKit:
    begin_again(docker_kit, briefer)
    return docker_kit


@pytest.mark.engine
@pytest.mark.parametrize("read_only", [False, True])
def test_secret_file_is_mounted_and_the_engine_knows_only_its_path(
    container_kit: DockerKit, read_only: bool
) -> None:
    kit = container_kit
    script = "grep ' /run/secrets/key ' /proc/mounts; stat -c %a /run/secrets/key; " + (
        "echo x > /run/secrets/key; echo $?"
    )
    ended = ran(kit, script, FILE, SecretUse("token", path="/token"), read_only=read_only)
    kind, *others = kit.log(ended.uid).splitlines()
    assert kind.split()[2] == "tmpfs"
    assert kind.split()[3].split(",")[0] == "ro"
    assert others == ["444", "1"]
    inspected = json.dumps(kit.inspect(ended.uid))
    assert "/run/secrets/key" in inspected
    assert TOKEN.decode() not in inspected
    assert base64.b64encode(KEY).decode() not in inspected
    assert stands_in(kit.home, TOKEN, KEY) == []


@pytest.mark.engine
def test_secrets_of_another_attempt_are_out_of_reach(container_kit: DockerKit) -> None:
    """Root in a container without secrets searches for those of a running one."""
    kit = container_kit
    launch = kit.launch("sleep", "300", secrets=(FILE, VARIABLE))
    kit.driver.start(launch)
    kit.events.started(launch.uid)
    folder = folder_of(kit)
    assert stands_in(folder, KEY) == [folder / launch.uid / "0"]
    token = TOKEN.decode()
    script = (
        f"ls -A /run/secrets; ls -d {folder}; grep -E 'secrets|{folder}' /proc/mounts;"
        f" cat /proc/*/environ | grep -a {token[:6]}[{token[6]}]; echo searched"
    )
    ended = kit.launch("sh", "-c", script, user="0")
    kit.driver.start(ended)
    assert kit.events.ended(ended.uid).exit_code == 0
    assert kit.log(ended.uid).splitlines() == ["searched"]


@pytest.mark.engine
def test_secret_variable_is_in_the_container_but_in_no_file_of_the_cell(
    container_kit: DockerKit,
) -> None:
    kit = container_kit
    launch = kit.launch("sleep", "300", secrets=(VARIABLE,), env={"TOKEN": "plain", "A": "b"})
    kit.driver.start(launch)
    kit.events.started(launch.uid)
    env = kit.inspect(launch.uid)["Config"]["Env"]
    assert {f"TOKEN={TOKEN.decode()}", "A=b"} < set(env)
    assert "TOKEN=plain" not in env
    assert stands_in(kit.home, TOKEN) == []
    assert TOKEN.decode() not in repr(launch)
