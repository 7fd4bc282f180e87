"""The hooks of jobs' kinds: those of other packages are called in bounded time, with no lock held.

Those that are built in are pure, and are called where they stand.
"""

from collections.abc import Callable, Mapping
from inspect import getattr_static
from time import monotonic
from types import MappingProxyType

import structlog

from controlplane import plugins
from controlplane.commands.hooks.bounded_calls import BoundedCalls
from controlplane.domain.hooks.built_in import BUILT_IN, BatchHook
from controlplane.domain.hooks.errors import MAX_ERROR_TEXT, describe_error
from controlplane.domain.hooks.interface import (
    AttemptEnd,
    EndOfJob,
    GroupTerms,
    Hook,
    HookEvent,
    HookUnavailable,
    LifeEvent,
    UnknownKind,
)
from controlplane.domain.state.transitions import Event
from controlplane.plugins import Kind, NotInstalled

log = structlog.get_logger(__name__)

_METHODS: Mapping[HookEvent, str] = MappingProxyType(
    {HookEvent.PLACED: "on_placed", HookEvent.STARTED: "on_started"}
)
PREPARE_SECONDS = 10.0
"""For all calls of a submission or a retry, whose caller waits for the answer."""

_NONE: frozenset[HookEvent] = frozenset()
_calls = BoundedCalls()


class _BoundedHook:
    """A hook of another package. Its methods raise HookUnavailable if it takes too long.

    `check_time`: raises it before a call of `prepare` if no time is left.
    """

    def __init__(self, kind: str, hook: Hook, check_time: Callable[[], None]) -> None:
        self._kind, self._hook, self._check_time = kind, hook, check_time

    def prepare(self, terms: GroupTerms) -> GroupTerms:
        """Call the hook."""
        self._check_time()
        return _calls.call(self._kind, lambda: self._hook.prepare(terms))

    def on_end(self, end: AttemptEnd) -> Event:
        """Call the hook."""
        return _calls.call(self._kind, lambda: self._hook.on_end(end))


def is_built_in(kind: str) -> bool:
    """Whether the kind is one of ours."""
    return kind in BUILT_IN


def has_others() -> bool:
    """Whether hooks of other packages are installed."""
    return len(plugins.names_of(Kind.HOOK)) > len(BUILT_IN)


class PreparationHooks:
    """The installed hooks, for one submission or rerun that begins now."""

    def __init__(self) -> None:
        self._ends_at = monotonic() + PREPARE_SECONDS

    def find(self, kind: str) -> Hook:
        """Return the hook of a kind. Raise UnknownKind, HookUnavailable."""
        hook = find_hook(kind, check_time=self._check_time)
        if hook is None:
            names = ", ".join(plugins.names_of(Kind.HOOK))
            raise UnknownKind(f"there is no kind {kind}; installed are {names}")
        self._check_time()
        return hook

    def _check_time(self) -> None:
        if monotonic() > self._ends_at:
            text = f"the hooks of this submission took longer than {PREPARE_SECONDS:g} s"
            raise HookUnavailable(text)


def find_hook(kind: str, *, check_time: Callable[[], None] = lambda: None) -> Hook | None:
    """Return the hook of a kind; None: none of that name is installed."""
    try:
        hook: Hook = plugins.get(Kind.HOOK, kind)
    except NotInstalled:
        return None
    return hook if is_built_in(kind) else _BoundedHook(kind, hook, check_time)


def hook_of(kind: str) -> Hook:
    """The hook of a job that was taken; if it is not installed any more, that of batch."""
    hook = find_hook(kind)
    if hook is None:
        log.warning("hook_not_installed", kind=kind)
        return BatchHook()
    return hook


def moments_of(kind: str) -> frozenset[HookEvent]:
    """At which moments the kind is called; none of those that are built in ever is."""
    if is_built_in(kind):
        return _NONE
    try:
        hook = plugins.get(Kind.HOOK, kind)
    except NotInstalled:
        return _NONE
    # Read without running code of another package: callers hold locks.
    return frozenset(
        at for at, name in _METHODS.items() if callable(getattr_static(hook, name, None))
    )


def call_at(kind: str, event: LifeEvent) -> EndOfJob | None:
    """Call the kind at a moment of an attempt; nothing, if it is not called then any more.

    Raises HookUnavailable, and whatever the hook raises.
    """
    if event.moment not in moments_of(kind):
        log.warning("hook_not_installed", kind=kind, moment=str(event.moment))
        return None
    hook, method = plugins.get(Kind.HOOK, kind), _METHODS[event.moment]
    answer = _calls.call(kind, lambda: getattr(hook, method)(event))
    if answer is None:
        return None
    if not isinstance(answer, EndOfJob) or not isinstance(answer.text, str):
        raise TypeError(f"it answered {type(answer).__name__}, neither None nor EndOfJob")
    return answer


def describe_failure(kind: str, what: str, error: Exception) -> str:
    """Why a job ends whose hook failed. `what`: "on_end" and the like."""
    if isinstance(error, HookUnavailable):
        why = str(error)
    else:
        why = f"it raised {describe_error(error)}"
    return f"the hook {kind} failed in {what}: {why}"[:MAX_ERROR_TEXT]
