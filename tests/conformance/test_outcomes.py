"""Every row of the table of ends, provoked on the real engine or from recorded messages.

A row that no engine of a test can be brought to has its words recorded here, with the reason.
"""

import io
import json
import os
import random
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from controlplane.contract.messages.health import HealthCheck
from controlplane.contract.messages.reports import (
    COMMAND,
    IMAGE,
    NOT_HERE,
    PERMANENT,
    REGISTRY,
    SPEC,
)
from controlplane.contract.states import FailureKind
from tests.conformance.kit import DockerKit, made_kit
from tests.harness.web import Answer, Request, Web
from workers.attempt import outcome
from workers.attempt.events import EndedEvent, Launch, Permit
from workers.attempt.outcome import (
    EXIT,
    HEALTH,
    IDLE,
    KILLED_OUTSIDE,
    LIFETIME,
    OUT_OF_MEMORY,
    STOPPED,
    TIMEOUT,
    VANISHED,
)
from workers.attempt.runtime import ContainerStatus, ContainerView
from workers.drivers.docker.connection import connect
from workers.drivers.docker.container import view_of

pytestmark = pytest.mark.engine

USER, SYSTEM, OUTSIDE = FailureKind.USER, FailureKind.SYSTEM, FailureKind.OUTSIDE
SMALL = {"memory_mib": 16}
EATS = "x=a; while true; do x=$x$x; done"
# Of this process: another one that runs these tests takes its own away when it is done.
ODD = f"cellrun-conformance/odd-{os.getpid()}"
AT_ONCE = 8
SAMPLE = 8  # of the 256 exit codes, in the short suite


def lived(kit: DockerKit, *command: str, **spec: Any) -> EndedEvent:
    """The end of a command."""
    launch = kit.launch(*command, **spec)
    kit.driver.start(launch)
    return kit.events.ended(launch.uid)


# ----------------------------------------------------------------------------- ends of a process


def nothing(kit: DockerKit, launch: Launch) -> None:
    """The process ends by itself."""


def stop(kit: DockerKit, launch: Launch) -> None:
    """We order its end."""
    kit.events.started(launch.uid)
    kit.driver.stop(launch.uid, grace_seconds=0, force=True)


def kill_from_outside(kit: DockerKit, launch: Launch) -> None:
    """Kill the container from outside, as `docker kill` does."""
    kit.events.started(launch.uid)
    kit.kill_outside(launch.uid)


@dataclass(frozen=True)
class End:
    """A process, what is done to it, and what its end means."""

    name: str
    script: str
    code: int | None
    kind: FailureKind | None
    reason: str | None
    done: Callable[[DockerKit, Launch], None] = nothing
    spec: dict[str, Any] = field(default_factory=dict)


WRONG = HealthCheck(
    ("false",), interval_seconds=0.1, timeout_seconds=2.0, start_period_seconds=0.0, retries=1
)
ENDS = (
    End("timeout", "sleep 300", 137, None, TIMEOUT, spec={"timeout_seconds": 0.3}),
    End("idle", "sleep 300", 137, None, IDLE, spec={"idle_timeout_seconds": 0.5}),
    End("lifetime", "sleep 300", 137, None, LIFETIME, spec={"lifetime_seconds": 0.3}),
    End("unhealthy", "sleep 300", 137, USER, HEALTH, spec={"health_check": WRONG}),
    End("stopped by us", "sleep 300", 137, None, STOPPED, stop),
    End("success", "exit 0", 0, None, None),
    End("success, a child out of memory", f"sh -c '{EATS}'; exit 0", 0, None, None),
    End("out of memory", EATS, 137, USER, OUT_OF_MEMORY),
    End("failure, a child out of memory", f"sh -c '{EATS}'; exit 3", 3, USER, OUT_OF_MEMORY),
    End("killed from outside", "sleep 300", 137, OUTSIDE, KILLED_OUTSIDE, kill_from_outside),
    End("its child's SIGKILL", "sh -c 'kill -9 $$'; exit $?", 137, OUTSIDE, KILLED_OUTSIDE),
    End("its child's SIGSEGV", "sh -c 'kill -11 $$'; exit $?", 139, None, EXIT),
    End("failure", "exit 7", 7, None, EXIT),
)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.name)
def test_process_end_maps_to_exit_code_kind_and_reason(docker_kit: DockerKit, end: End) -> None:
    launch = docker_kit.launch(
        "sh", "-c", end.script, resources=SMALL, stop_grace_seconds=0.1, **end.spec
    )
    docker_kit.driver.start(launch)
    end.done(docker_kit, launch)
    ended = docker_kit.events.ended(launch.uid)
    assert (ended.exit_code, ended.failure_kind, ended.reason) == (end.code, end.kind, end.reason)


def test_late_out_of_memory_flag_of_the_engine_is_reported(
    docker_kit: DockerKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[ContainerView] = []

    def late(body: dict[str, Any]) -> ContainerView:
        view = view_of(body)
        if view.status is not ContainerStatus.ENDED:
            return view
        seen.append(view)
        return view if len(seen) > 2 else replace(view, out_of_memory=False)

    monkeypatch.setattr("workers.drivers.docker.driver.view_of", late)
    launch = docker_kit.launch("sh", "-c", EATS, resources=SMALL)
    docker_kit.driver.start(launch)
    ended = docker_kit.events.ended(launch.uid)
    assert (ended.failure_kind, ended.reason) == (USER, OUT_OF_MEMORY)


def check_exit_codes(kit: DockerKit, codes: list[int]) -> None:
    """Check that programs that end with these codes are reported with them."""
    launches = {code: kit.launch(*kit.exits(code)) for code in codes}
    for start in range(0, len(codes), AT_ONCE):
        some = codes[start : start + AT_ONCE]
        for code in some:
            kit.driver.start(launches[code])
        for code in some:
            ended = kit.events.ended(launches[code].uid)
            reason = {0: None, 137: KILLED_OUTSIDE}.get(code, EXIT)
            assert (ended.exit_code, ended.reason) == (code, reason)
            kit.driver.remove(ended.uid)


def test_sampled_exit_codes_are_reported(docker_kit: DockerKit) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    codes = random.Random(seed).sample(range(256), SAMPLE - 2)
    check_exit_codes(docker_kit, [*codes, 128, 255])


@pytest.mark.soak
def test_every_exit_code_is_reported(docker_kit: DockerKit) -> None:
    check_exit_codes(docker_kit, list(range(256)))


# ----------------------------------------------------------------------------- refusals


@dataclass(frozen=True)
class Refusal:
    """A request of a task, the engine's message about it, and the result."""

    name: str
    words: str
    kind: FailureKind
    reason: str
    code: int | None = None
    command: tuple[str, ...] = ("true",)
    spec: dict[str, Any] = field(default_factory=dict)


REFUSALS = (
    Refusal("user", "unable to find user nobody-here", USER, SPEC, spec={"user": "nobody-here"}),
    Refusal("group", "unable to find group nowhere", USER, SPEC, spec={"user": "0:nowhere"}),
    Refusal("user id", "uids and gids must be in range", USER, SPEC, spec={"user": "99999999999"}),
    Refusal("workdir file", "is not a directory", USER, SPEC, spec={"workdir": "/etc/passwd"}),
    Refusal("workdir", "the working directory 'x' is invalid", USER, SPEC, spec={"workdir": "x"}),
    Refusal("memory", "Minimum memory limit", USER, SPEC, spec={"resources": {"memory_mib": 1}}),
    Refusal("cpu", "Range of CPUs", USER, NOT_HERE, spec={"resources": {"cpu_millis": 10**7}}),
    Refusal("signal", "Invalid signal", USER, SPEC, spec={"stop_signal": "NOPE"}),
    Refusal("variable", "invalid environment variable", USER, SPEC, spec={"env": {"": "x"}}),
    Refusal("zero byte", "can't contain null", USER, SPEC, spec={"env": {"A": "b\0c"}}),
    Refusal("no command", "No command specified", USER, COMMAND, command=(), spec={"image": ODD}),
    Refusal("missing", "executable file not found", USER, COMMAND, 127, ("no-such-program",)),
    Refusal(
        "missing path", "stat /nope: no such file or directory", USER, COMMAND, 127, ("/nope",)
    ),
    Refusal("no program", "permission denied", USER, COMMAND, 126, ("/etc/passwd",)),
    Refusal("folder", 'exec: "/tmp"', USER, COMMAND, 126, ("/tmp",)),
    Refusal(
        "no such image",
        "cellrun/missing:1 is not on the engine",
        USER,
        IMAGE,
        spec={"image": "cellrun/missing:1", "pull_policy": "never"},
    ),
)


@pytest.fixture(scope="module")
def refuser(image: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerKit]:
    """One kit for all that never runs, and an image without a program."""
    outside = connect()
    outside.import_image_from_data(empty_root(), repository=ODD)
    try:
        with made_kit("docker", tmp_path_factory.mktemp("refuser") / "cell") as kit:
            assert isinstance(kit, DockerKit)
            yield kit
    finally:
        outside.remove_image(ODD, force=True)
        outside.close()


def empty_root() -> bytes:
    """A root with one folder in it, and no program."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    return content.getvalue()


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.name)
def test_refused_spec_maps_to_kind_reason_and_exit_code(
    refuser: DockerKit, refusal: Refusal
) -> None:
    ended = lived(refuser, *refusal.command, **refusal.spec)
    assert ended.message is not None
    assert refusal.words in ended.message
    assert (ended.failure_kind, ended.reason) == (refusal.kind, refusal.reason)
    assert (ended.exit_code, ended.started_at) == (refusal.code, None)
    assert "tried" not in ended.message  # what only the user can cure is not tried again


def test_only_the_refusal_for_lack_of_cores_is_not_permanent() -> None:
    assert {refusal.name for refusal in REFUSALS if refusal.reason not in PERMANENT} == {"cpu"}


def test_container_removed_before_its_start_is_reported_vanished(
    docker_kit: DockerKit, web: Web
) -> None:
    launch = docker_kit.launch("true")
    docker_kit.driver.start(replace(launch, permit=Removal(docker_kit, launch.uid)))
    ended = docker_kit.events.ended(launch.uid)
    assert (ended.failure_kind, ended.reason) == (OUTSIDE, VANISHED)
    assert not ended.never_created


class Removal:
    """A permit that is called before the create, and again before the start: then all is gone."""

    def __init__(self, kit: DockerKit, uid: str) -> None:
        self._kit, self._uid = kit, uid

    def __call__(self) -> Permit:
        if [found for found in self._kit.driver.find() if found.uid == self._uid]:
            self._kit.remove_outside(self._uid)
        return Permit.YES


# ----------------------------------------------------------------------------- registries


@dataclass(frozen=True)
class RegistryReply:
    """How a registry answers the question for an image, and what that means."""

    status: int
    kind: FailureKind
    words: str
    code: str = ""  # of the registry protocol; empty: an answer as of a proxy, without the protocol
    body: bytes = b""

    @property
    def answer(self) -> Answer:
        """As it goes over the wire."""
        if not self.code:
            return Answer(self.status, self.body)
        errors = {"errors": [{"code": self.code, "message": self.words}]}
        headers = {"Content-Type": "application/json"}
        return Answer(self.status, json.dumps(errors).encode(), headers)


HTML = b"<html>no</html>"
SAYINGS = (
    RegistryReply(404, USER, "manifest unknown", "MANIFEST_UNKNOWN"),
    RegistryReply(404, USER, "name unknown", "NAME_UNKNOWN"),
    RegistryReply(401, USER, "unauthorized", "UNAUTHORIZED"),
    RegistryReply(403, USER, "denied", "DENIED"),
    RegistryReply(400, USER, "name invalid", "NAME_INVALID"),
    RegistryReply(429, SYSTEM, "toomanyrequests", "TOOMANYREQUESTS"),
    RegistryReply(401, USER, "unauthorized"),
    RegistryReply(403, USER, "parsing HTTP 403 response", body=HTML),
    RegistryReply(404, USER, "parsing HTTP 404 response", body=HTML),
    RegistryReply(429, SYSTEM, "429", body=HTML),
    RegistryReply(500, SYSTEM, "500 Internal Server Error"),
    RegistryReply(502, SYSTEM, "502 Bad Gateway", body=HTML),
    RegistryReply(503, SYSTEM, "503 Service Unavailable"),
    RegistryReply(504, SYSTEM, "504 Gateway Timeout"),
    RegistryReply(200, SYSTEM, "missing or empty Content-Type", body=HTML),
)


@pytest.mark.parametrize("reply", SAYINGS, ids=lambda reply: f"{reply.status} {reply.code}".strip())
def test_registry_answer_maps_to_failure_kind(
    refuser: DockerKit, web: Web, reply: RegistryReply
) -> None:
    def route(request: Request) -> Answer:
        return Answer(200, b"{}") if request.path == "/v2/" else reply.answer

    web.route = route
    ended = lived(refuser, "true", image=f"{web.address}/some/image:1")
    check_pull(ended, reply.words, reply.kind)


@pytest.mark.parametrize(
    ("name", "words", "kind"),
    [
        ("127.0.0.1:1/some/image:1", "connection refused", SYSTEM),
        ("registry.invalid/image:1", "dial tcp", SYSTEM),
        ("Not/An//Image", "invalid reference format", USER),
        ("127.0.0.1:1/Upper/case:1", "must be lowercase", USER),
        ("127.0.0.1:1/image:ta%g", "invalid reference format", USER),
        ("127.0.0.1:1/" + "a" * 300, "repository name", USER),
        ("http://127.0.0.1:1/image", "is a URL", USER),
        ("", "names no image", USER),
    ],
)
def test_unpullable_image_name_maps_to_failure_kind(
    refuser: DockerKit, name: str, words: str, kind: FailureKind
) -> None:
    check_pull(lived(refuser, "true", image=name), words, kind)


def check_pull(ended: EndedEvent, words: str, kind: FailureKind) -> None:
    """The pull failed in these words; only what is not the user's was tried again."""
    assert ended.message is not None
    assert words in ended.message
    reason = IMAGE if kind is USER else REGISTRY
    assert (ended.failure_kind, ended.reason) == (kind, reason), ended.message
    assert ("tried 3 times" in ended.message) == (kind is SYSTEM)
    assert ended.never_created


# ----------------------------------------------------------------------------- other words

# What was not provoked above: the messages as an engine or a registry sent them, or as
# its source has them, and why not.
RECORDED = {
    "write /var/lib/docker/tmp/x: no space left on device": "see test_engine_disk",
    "disk quota exceeded": "needs a file system with quotas",
    "too many requests; rate limit": "Docker Hub's own page",
    "net/http: TLS handshake timeout": "needs a registry with TLS beyond this machine",
    "context deadline exceeded": "takes the engine's own minute",
    "read tcp 1.2.3.4:1: i/o timed out": "takes the kernel's own minutes",
    "read: connection reset by peer": "see test_registry",
    "connect: no route to host": "needs another network",
    "connect: network is unreachable": "needs another network",
    "x509: certificate signed by unknown authority": "the engine asks none of the loopback's",
    "unexpected EOF": "see test_registry",
    "server misbehaving": "needs a broken name server",
    "temporary failure in name resolution": "needs a broken name server",
    "no such host": "where there is a name server",
    "image not found": "Podman's words",
    "repository does not exist or may require 'docker login'": "Docker Hub's",
    "No such image: x:latest": "removed between its pull and its create",
    "no matching manifest for linux/arm64 in the manifest list entries": "another machine's image",
    "unauthorised": "a proxy's spelling",
    "authentication required": "see test_registry",
    "no basic auth credentials": "see test_registry",
    "forbidden": "a proxy's",
    "invalid repository name": "older engines'",
    "unsupported media type": "older engines'",
    "image operating system does not match the specified platform": "another machine's image",
    "container init was OOM-killed (memory limit too low?)": "runc 1.2 and later",
    "cwd must be an absolute path": "Podman's",
    "invalid user: x": "newer engines'",
    'chdir to cwd ("/x") set in config.json failed: permission denied': "runc 1.1 looks as root",
    "path is not an absolute path": "Podman's",
    "exec /bin/x: no such file or directory": "a script without its interpreter, newer engines'",
    'exec: "/tmp": is a directory': "runc 1.2 and later",
    "could not find an available, non-overlapping IPv4 address pool": "needs all networks in use",
    "exec /bin/x: exec format error": "Docker 23 and later; before, it exits with 1",
}
RULES = (*outcome._PULL_RULES, *outcome._START_RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.reason} {rule.pattern[:20]}")
def test_every_rule_pattern_matches_a_recorded_message(rule: Any) -> None:
    recorded = [
        *RECORDED,
        *(refusal.words for refusal in REFUSALS),
        *(reply.words for reply in SAYINGS),
        "connection refused",
        "dial tcp",
        "invalid reference format",
        "must be lowercase",
        "invalid tag format",
        "repository name must not be longer",
        "No such container: x",
        "no matching entries in passwd file",
        'exec: "/nope": stat /nope: no such file or directory',
        "the container vanished before its start",
        'exec: "/etc/passwd": permission denied',
    ]
    for pattern in alternatives(rule.pattern):
        assert any(re.search(pattern, words, re.IGNORECASE) for words in recorded), pattern


def alternatives(pattern: str) -> list[str]:
    """The parts of `a|b(c|d)` that stand beside one another."""
    parts, depth = [""], 0
    for letter in pattern:
        depth += (letter == "(") - (letter == ")")
        if letter == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
