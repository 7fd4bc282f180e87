"""The only mapping of exits and failures to a kind, a reason and a message.

The control plane reads `reason` as a code and `failure_kind` as the retry budget to charge;
`message` is for people and includes the engine's error text.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from controlplane.contract.messages.reports import (
    COMMAND,
    IMAGE,
    NOT_HERE,
    REGISTRY,
    SPEC,
)
from controlplane.contract.states import FailureKind

EXIT = "exit"  # the program ended by itself
TIMEOUT = "timeout"  # timeout_seconds were over
IDLE = "idle_timeout"  # no activity for idle_timeout_seconds
LIFETIME = "lifetime_over"  # lifetime_seconds were over
HEALTH = "health_check"  # its health check failed
DISK_LIMIT = "disk_limit"  # more on disk than it requested
STOPPED = "stopped"  # a stop order of the cell
OUT_OF_MEMORY = "oom"
KILLED_OUTSIDE = "killed_outside"  # a signal from neither the cell nor the memory limit
VANISHED = "vanished"  # the container is gone or never existed, and this cell did not remove it
ENGINE = "engine"  # the engine fails or does not answer
INPUTS = "inputs"  # an input could not be fetched or placed
LEASE_OVER = "lease_over"  # an exclusive attempt must not outlive its cell's lease
FORBIDDEN = "forbidden"  # the operator of the cell forbids a privilege that the task needs
GUARD = "guard"  # the guard of exclusive attempts does not answer
WEB = "web"  # the control plane's web process does not answer, or refuses
SECRET = "secret"  # a secret that the task names does not exist, or cannot be used
OUTPUTS = "outputs"  # an output could not be kept
RUNNER = "runner"  # the runner of its task type failed, or reported that the task did
DISK = "disk"  # no space left on the cell

# Ends by a limit of the task itself: it is not retried.
LIMITS = (TIMEOUT, IDLE, LIFETIME)

SIGKILLED = 137  # 128 + SIGKILL, the convention of engines and shells
SIGTERMED = 143
NOT_EXECUTABLE = 126
NOT_FOUND = 127


class AttemptFailed(Exception):
    """Ends the attempt with a failure kind, reason and message. `exit_code`: as in a shell."""

    def __init__(
        self, kind: FailureKind | None, reason: str, message: str, exit_code: int | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.reason = reason
        self.message = message
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class Exit:
    """How the main process ended.

    `stopped_for`: the reason of the cell's stop that reached it before. `stopped`: another process
    sent it a signal.
    """

    code: int
    out_of_memory: bool = False
    stopped_for: str | None = None
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class ExitClassification:
    """The reported end of an attempt."""

    kind: FailureKind | None
    reason: str | None
    message: str | None


@dataclass(frozen=True, slots=True)
class _ExitRule:
    matches: Callable[[Exit], bool]
    kind: FailureKind | None
    reason: str | None
    message: str | None


# The first match wins. The engine's memory flag counts only if the exit failed: a killed child
# sets it too, and a program may survive that.
_EXITS: tuple[_ExitRule, ...] = (
    _ExitRule(lambda e: e.stopped_for == TIMEOUT, None, TIMEOUT, "ran longer than timeout_seconds"),
    _ExitRule(
        lambda e: e.stopped_for == IDLE, None, IDLE, "idle for longer than idle_timeout_seconds"
    ),
    _ExitRule(
        lambda e: e.stopped_for == LIFETIME, None, LIFETIME, "ran longer than lifetime_seconds"
    ),
    _ExitRule(
        lambda e: e.stopped_for == HEALTH, FailureKind.USER, HEALTH, "its health check failed"
    ),
    _ExitRule(
        lambda e: e.stopped_for == DISK_LIMIT,
        FailureKind.USER,
        DISK_LIMIT,
        "used more disk than its limit",
    ),
    _ExitRule(lambda e: e.stopped_for is not None, None, STOPPED, "stopped by order"),
    _ExitRule(lambda e: e.code == 0, None, None, None),
    _ExitRule(lambda e: e.out_of_memory, FailureKind.USER, OUT_OF_MEMORY, "out of memory"),
    _ExitRule(
        lambda e: e.code == SIGKILLED,
        FailureKind.OUTSIDE,
        KILLED_OUTSIDE,
        "killed from outside (SIGKILL without an order of the cell, memory limit not reached)",
    ),
    _ExitRule(
        lambda e: e.stopped,
        FailureKind.OUTSIDE,
        KILLED_OUTSIDE,
        "stopped from outside (a signal without an order of the cell); exit status {code}",
    ),
    _ExitRule(lambda e: True, None, EXIT, "exit status {code}"),
)


@lru_cache(maxsize=1024)
def judge_exit(ended: Exit) -> ExitClassification:
    """Classify the end of a main process."""
    rule = next(rule for rule in _EXITS if rule.matches(ended))
    message = rule.message.format(code=ended.code) if rule.message else None
    return ExitClassification(rule.kind, rule.reason, message)


@dataclass(frozen=True, slots=True)
class _EngineErrorRule:
    """The classification of engine errors whose text matches `pattern` (case ignored)."""

    pattern: str
    kind: FailureKind
    reason: str
    exit_code: int | None = None


_DISK_FULL = _EngineErrorRule(
    r"no space left on device|disk quota exceeded", FailureKind.SYSTEM, DISK
)

# Pull errors of Docker and containerd; any other error of a pull is the fault of the registry
# or the network. "toomanyrequests" precedes the denials that accompany it.
_PULL_RULES: tuple[_EngineErrorRule, ...] = (
    _DISK_FULL,
    # A registry, or its proxy, that refuses without the error codes of the protocol.
    _EngineErrorRule(r"parsing http 40[134] response", FailureKind.USER, IMAGE),
    _EngineErrorRule(
        r"toomanyrequests|too many requests|rate limit|\b429\b", FailureKind.SYSTEM, REGISTRY
    ),
    _EngineErrorRule(
        r"no such host|timeout|timed out|deadline exceeded|connection re(fused|set)|no route"
        r"|unreachable|tls|x509|\beof\b|dial tcp|server misbehaving|temporary failure"
        r"|\b50[0234]\b|internal server error|bad gateway|service unavailable",
        FailureKind.SYSTEM,
        REGISTRY,
    ),
    # Before the patterns of an absent image: the image exists for another platform.
    _EngineErrorRule(
        r"no matching manifest|does not match the specified platform", FailureKind.USER, NOT_HERE
    ),
    _EngineErrorRule(
        r"not found|manifest unknown|name unknown|does not exist|no such image"
        r"|unauthori[sz]ed|denied|authentication required|no basic auth|forbidden"
        r"|invalid reference|invalid repository|repository name|must be lowercase|invalid tag"
        r"|name invalid|unsupported media type",
        FailureKind.USER,
        IMAGE,
    ),
)

# Errors when a container is created or started.
_START_RULES: tuple[_EngineErrorRule, ...] = (
    _DISK_FULL,
    # No address is left for another network; some versions report a plain 4xx.
    _EngineErrorRule(r"address pool", FailureKind.SYSTEM, ENGINE),
    # The image existed at the end of the pull step and was removed since.
    _EngineErrorRule(r"no such image", FailureKind.SYSTEM, ENGINE),
    _EngineErrorRule(
        r"invalid reference|invalid repository|must be lowercase", FailureKind.USER, IMAGE
    ),
    _EngineErrorRule(r"oom-?killed|memory limit too low", FailureKind.USER, OUT_OF_MEMORY),
    _EngineErrorRule(
        r"minimum memory limit|unable to find (user|group)|no matching entries in (passwd|group)"
        r"|cwd must be|working directory|invalid (signal|env|user)|chdir to cwd"
        r"|uids and gids must be|is not a directory|can't contain null|is not an absolute path",
        FailureKind.USER,
        SPEC,
    ),
    _EngineErrorRule(r"no command specified", FailureKind.USER, COMMAND),
    # More cores than this machine has.
    _EngineErrorRule(r"range of cpus", FailureKind.USER, NOT_HERE),
    _EngineErrorRule(
        r"executable file not found|exec: .*no such file or directory"
        r"|exec .*no such file or directory",
        FailureKind.USER,
        COMMAND,
        NOT_FOUND,
    ),
    _EngineErrorRule(
        r"exec.*permission denied|is a directory", FailureKind.USER, COMMAND, NOT_EXECUTABLE
    ),
    # A program for another platform, or a script that names no interpreter.
    _EngineErrorRule(r"exec format error", FailureKind.USER, NOT_HERE, NOT_EXECUTABLE),
    # The container was removed from outside between its creation and its start.
    _EngineErrorRule(r"no such container|container vanished", FailureKind.OUTSIDE, VANISHED),
)


def _failure(stage: str, text: str, rules: tuple[_EngineErrorRule, ...]) -> AttemptFailed | None:
    for rule in rules:
        if re.search(rule.pattern, text, re.IGNORECASE):
            return AttemptFailed(rule.kind, rule.reason, f"{stage}: {text}", rule.exit_code)
    return None


def judge_pull_error(text: str, status: int | None = None) -> AttemptFailed:
    """Classify a refused pull: by its text, else a plain 4xx is USER, the rest SYSTEM."""
    failure = _failure("pull", text, _PULL_RULES)
    if failure is None and status in (400, 401, 403, 404):
        failure = AttemptFailed(FailureKind.USER, IMAGE, f"pull: {text}")
    return failure or AttemptFailed(FailureKind.SYSTEM, REGISTRY, f"pull: {text}")


def judge_start_error(stage: str, text: str, status: int | None = None) -> AttemptFailed:
    """Classify a refused create or start: by its text, else a plain 400 is USER, the rest SYSTEM.

    A 400 without a matching rule may be specific to this cell, such as a missing mount source.
    """
    failure = _failure(stage, text, _START_RULES)
    if failure is None and status == 400:
        failure = AttemptFailed(FailureKind.USER, NOT_HERE, f"{stage}: {text}")
    return failure or AttemptFailed(FailureKind.SYSTEM, ENGINE, f"{stage}: {text}")
