"""The hooks of jobs' kinds, guarded: what one of another package does must not stop ours."""

import structlog

from controlplane import plugins
from controlplane.domain.hooks.batch import Batch
from controlplane.domain.hooks.interface import End, Hook, Terms
from controlplane.domain.transitions import Event
from controlplane.plugins import Kind, NotInstalled

log = structlog.get_logger(__name__)


class _Guarded:
    """A hook whose failure at an end is logged, and means what its cell told."""

    def __init__(self, kind: str, hook: Hook) -> None:
        self._kind = kind
        self._hook = hook

    def prepare(self, terms: Terms) -> Terms:
        """As the hook says."""
        return self._hook.prepare(terms)

    def on_end(self, end: End) -> Event:
        """As the hook says, if it does."""
        try:
            return self._hook.on_end(end)
        except Exception:
            log.exception("hook_failed", kind=self._kind)
            return end.event


def find_hook(kind: str) -> Hook | None:
    """The hook of a kind; None: none of that name is installed."""
    try:
        return _Guarded(kind, plugins.get(Kind.HOOK, kind))
    except NotInstalled:
        return None


def hook_of(kind: str) -> Hook:
    """The hook of a job that was taken; if it is not installed any more, that of batch."""
    hook = find_hook(kind)
    if hook is None:
        log.warning("hook_not_installed", kind=kind)
        return Batch()
    return hook


def describe_unknown(kind: str) -> str:
    """What to say of a kind that is not installed."""
    return f"there is no kind {kind}; installed are {', '.join(plugins.names_of(Kind.HOOK))}"
