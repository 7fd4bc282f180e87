"""The table of ends: every exit and every refusal of an engine has one meaning."""

from itertools import product

import pytest

from controlplane.contract.messages.reports import COMMAND, IMAGE, NOT_HERE, REGISTRY, SPEC
from controlplane.contract.states import FailureKind
from workers.attempt.outcome import (
    DISK,
    ENGINE,
    EXIT,
    KILLED_OUTSIDE,
    OUT_OF_MEMORY,
    STOPPED,
    TIMEOUT,
    Exit,
    judge_exit,
    judge_pull_error,
    judge_start_error,
)

USER, SYSTEM, OUTSIDE = FailureKind.USER, FailureKind.SYSTEM, FailureKind.OUTSIDE


@pytest.mark.parametrize(
    ("ended", "kind", "reason"),
    [
        (Exit(0), None, None),
        (Exit(0, out_of_memory=True), None, None),
        (Exit(1), None, EXIT),
        (Exit(143), None, EXIT),
        (Exit(143, stopped=True), OUTSIDE, KILLED_OUTSIDE),
        (Exit(143, stopped_for=STOPPED, stopped=True), None, STOPPED),
        (Exit(0, stopped=True), None, None),
        (Exit(137), OUTSIDE, KILLED_OUTSIDE),
        (Exit(137, out_of_memory=True), USER, OUT_OF_MEMORY),
        (Exit(1, out_of_memory=True), USER, OUT_OF_MEMORY),
        (Exit(137, stopped_for=STOPPED), None, STOPPED),
        (Exit(143, stopped_for=STOPPED), None, STOPPED),
        (Exit(0, stopped_for=STOPPED), None, STOPPED),
        (Exit(137, stopped_for=TIMEOUT), None, TIMEOUT),
        (Exit(137, out_of_memory=True, stopped_for=TIMEOUT), None, TIMEOUT),
    ],
)
def test_exit_maps_to_failure_kind_and_reason(
    ended: Exit, kind: FailureKind | None, reason: str | None
) -> None:
    verdict = judge_exit(ended)
    assert (verdict.kind, verdict.reason) == (kind, reason)


def test_every_exit_but_an_unordered_0_has_a_reason() -> None:
    for code, flag, stopped_for in product(range(256), (False, True), (None, STOPPED, TIMEOUT)):
        verdict = judge_exit(Exit(code, flag, stopped_for))
        assert (verdict.reason is None) == (code == 0 and stopped_for is None)


@pytest.mark.parametrize(
    ("words", "status", "kind", "reason"),
    [
        (
            "manifest for busybox:none not found: manifest unknown: manifest unknown",
            404,
            USER,
            IMAGE,
        ),
        (
            "pull access denied for x, repository does not exist or may require 'docker login':"
            " denied: requested access to the resource is denied",
            404,
            USER,
            IMAGE,
        ),
        ("unauthorized: authentication required", 500, USER, IMAGE),
        ("invalid reference format: repository name must be lowercase", 400, USER, IMAGE),
        ("no matching manifest for linux/arm64 in the manifest list entries", None, USER, NOT_HERE),
        ("something unrecorded", 404, USER, IMAGE),
        ("something unrecorded", 500, SYSTEM, REGISTRY),
        (
            'Get "https://registry-1.docker.io/v2/": dial tcp: lookup registry-1.docker.io:'
            " no such host",
            500,
            SYSTEM,
            REGISTRY,
        ),
        (
            'Get "http://127.0.0.1:1/v2/": dial tcp 127.0.0.1:1: connect: connection refused',
            500,
            SYSTEM,
            REGISTRY,
        ),
        ("received unexpected HTTP status: 503 Service Unavailable", 500, SYSTEM, REGISTRY),
        ("net/http: TLS handshake timeout", 500, SYSTEM, REGISTRY),
        (
            "toomanyrequests: You have reached your pull rate limit. denied",
            500,
            SYSTEM,
            REGISTRY,
        ),
        ("write /var/lib/docker/tmp/x: no space left on device", None, SYSTEM, DISK),
    ],
)
def test_refused_pull_maps_to_failure_kind_and_reason(
    words: str, status: int | None, kind: FailureKind, reason: str
) -> None:
    failure = judge_pull_error(words, status)
    assert (failure.kind, failure.reason) == (kind, reason)
    assert failure.message == f"pull: {words}"


@pytest.mark.parametrize(
    ("words", "status", "kind", "reason", "exit_code"),
    [
        ('exec: "nope": executable file not found in $PATH: unknown', 400, USER, COMMAND, 127),
        ('exec: "/nope": stat /nope: no such file or directory: unknown', 400, USER, COMMAND, 127),
        ('exec: "/etc/passwd": permission denied: unknown', 400, USER, COMMAND, 126),
        ('exec: "/tmp": is a directory: unknown', 400, USER, COMMAND, 126),
        ("exec /bin/x: exec format error", 400, USER, NOT_HERE, 126),
        ("unable to find user x: no matching entries in passwd file", 500, USER, SPEC, None),
        ("Minimum memory limit allowed is 6MB", 400, USER, SPEC, None),
        ("container init was OOM-killed (memory limit too low?)", 500, USER, OUT_OF_MEMORY, None),
        ("No such image: x:latest", 404, SYSTEM, ENGINE, None),
        ("some bad parameter", 400, USER, NOT_HERE, None),
        ("failed to create endpoint on network bridge", 500, SYSTEM, ENGINE, None),
        ("mkdir /var/lib/docker/x: no space left on device", 500, SYSTEM, DISK, None),
        ("all predefined address pools have been fully subnetted", 400, SYSTEM, ENGINE, None),
        (
            "could not find an available, non-overlapping IPv4 address pool among the defaults",
            404,
            SYSTEM,
            ENGINE,
            None,
        ),
    ],
)
def test_refused_start_maps_to_failure_kind_and_reason(
    words: str, status: int, kind: FailureKind, reason: str, exit_code: int | None
) -> None:
    failure = judge_start_error("start", words, status)
    assert (failure.kind, failure.reason, failure.exit_code) == (kind, reason, exit_code)
    assert failure.message == f"start: {words}"
