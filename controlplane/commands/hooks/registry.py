"""The hooks of jobs' kinds: those of other packages are called in bounded time, with no lock held.

Those that are built in are pure, and are called where they stand.
"""

from collections.abc import Mapping
from inspect import getattr_static
from time import monotonic
from types import MappingProxyType

import structlog

from controlplane import plugins
from controlplane.commands.hooks.bounded_calls import BoundedCalls
from controlplane.domain.hooks import BUILT_IN
from controlplane.domain.hooks.batch import BatchHook
from controlplane.domain.hooks.calls import MAX_ERROR_TEXT, describe_error
from controlplane.domain.hooks.interface import (
    AttemptEnd,
    EndOfJob,
    GroupTerms,
    Hook,
    HookEvent,
    HookUnavailable,
    LifeEvent,
)
from controlplane.domain.state.transitions import Event
from controlplane.plugins import Kind, NotInstalled

log = structlog.get_logger(__name__)

_METHODS: Mapping[HookEvent, str] = MappingProxyType(
    {HookEvent.PLACED: "on_placed", HookEvent.STARTED: "on_started"}
)
PREPARE_SECONDS = 10.0
"""For all calls of a submission or a retry, whose caller waits for the answer."""

SUBMISSION_TOO_SLOW = f"the hooks of this submission took longer than {PREPARE_SECONDS:g} s"
_NONE: frozenset[HookEvent] = frozenset()
_calls = BoundedCalls()


class _BoundedHook:
    """A hook of another package. Its methods raise HookUnavailable if it takes too long."""

    def __init__(self, kind: str, hook: Hook, ends_at: float | None) -> None:
        self._kind = kind
        self._hook = hook
        self._ends_at = ends_at

    def prepare(self, terms: GroupTerms) -> GroupTerms:
        """Call the hook."""
        if self._ends_at is not None and is_over(self._ends_at):
            raise HookUnavailable(SUBMISSION_TOO_SLOW)
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


def start_preparing() -> float:
    """When the calls of a submission that begins now must be over."""
    return monotonic() + PREPARE_SECONDS


def is_over(ends_at: float) -> bool:
    """Whether that instant has passed."""
    return monotonic() > ends_at


def find_hook(kind: str, *, ends_at: float | None = None) -> Hook | None:
    """The hook of a kind; None: none of that name is installed.

    `ends_at`: behind that instant its `prepare` is not called any more.
    """
    try:
        hook: Hook = plugins.get(Kind.HOOK, kind)
    except NotInstalled:
        return None
    return hook if is_built_in(kind) else _BoundedHook(kind, hook, ends_at)


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
    # Read without running code of another package: this is asked with locks held.
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


def describe_unknown(kind: str) -> str:
    """Return the error text of a kind that is not installed."""
    return f"there is no kind {kind}; installed are {', '.join(plugins.names_of(Kind.HOOK))}"
