"""Call hooks of other packages about ends before any lock; use the results under lock."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from time import monotonic
from uuid import UUID

import structlog

from controlplane.commands.attempts.hook_calls import ALERT
from controlplane.commands.hooks.registry import (
    describe_failure,
    find_hook,
    has_others,
    hook_of,
    is_built_in,
)
from controlplane.commands.state.apply import apply
from controlplane.contract.messages.reports import AttemptReport
from controlplane.domain.cells.reports import ReportSender, decide_report
from controlplane.domain.hooks.built_in import BUILT_IN, BatchHook
from controlplane.domain.hooks.interface import AttemptEnd, Hook, HookUnavailable
from controlplane.domain.state.effects import Effects, RaiseAlert
from controlplane.domain.state.states import TERMINAL
from controlplane.domain.state.transitions import Event
from controlplane.queries.jobs.hook_calls import find_kinds_of_attempts
from controlplane.queries.task_facts import load_facts_of_attempts

SECONDS = 3.0
"""Time limit for all ends of one batch of reports, whose cells wait for their acknowledgement.

Kinds have equal shares of it, and within a kind jobs take turns.
"""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class EndMeanings:
    """The events that hooks returned for ends, and the failures of hooks, by attempt."""

    events: dict[str, tuple[AttemptEnd, Event]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def hook_of(self, kind: str) -> Hook:
        """Return a hook that calls no other package: the built-in one or the recorded results."""
        return hook_of(kind) if is_built_in(kind) else _CalledHook(self)


class _CalledHook(BatchHook):
    """Returns the recorded event of a hook that was called before."""

    def __init__(self, meanings: EndMeanings) -> None:
        self._meanings = meanings

    def on_end(self, end: AttemptEnd) -> Event:
        end_then, event = self._meanings.events.get(end.attempt, (None, end.event))
        # If the attempt has changed since the call, the recorded event may be wrong.
        return event if end_then == end else end.event


class _RecordingHook(BatchHook):
    """Records the end with which another hook is to be called."""

    def __init__(self) -> None:
        self.end: AttemptEnd | None = None

    def on_end(self, end: AttemptEnd) -> Event:
        self.end = end
        return end.event


def call_about_ends(
    reported: Iterable[tuple[ReportSender, AttemptReport]], *, now: datetime
) -> EndMeanings:
    """Call the hooks of other packages about all reported ends, outside any transaction.

    Without such hooks, no statement is executed.
    """
    meanings = EndMeanings()
    ends = [
        (uid, sender, report)
        for sender, report in (reported if has_others() else ())
        if report.state in TERMINAL and (uid := _uid(report)) is not None
    ]
    if not ends:
        return meanings
    kinds = find_kinds_of_attempts({uid for uid, _, _ in ends}, BUILT_IN)
    by_kind = _classified_by_hooks(ends, kinds, now)
    share = SECONDS / max(1, len(by_kind))
    for kind, listed in by_kind.items():
        ends_at = monotonic() + share
        for end in _in_turns(listed):
            _call(kind, end, meanings, share, ends_at)
    if meanings.failures:
        texts = sorted(set(meanings.failures.items()))
        alerts = {kinds[UUID(uid)]: text for uid, text in texts}
        raised = [RaiseAlert(ALERT, f"hook {kind}", text) for kind, text in alerts.items()]
        apply(Effects(alerts=raised), now=now)
    return meanings


def _classified_by_hooks(
    ends: Sequence[tuple[UUID, ReportSender, AttemptReport]],
    kinds: Mapping[UUID, str],
    now: datetime,
) -> dict[str, list[AttemptEnd]]:
    """Return the ends that hooks of other packages classify, by kind."""
    facts = load_facts_of_attempts(list(kinds)) if kinds else {}
    found: dict[str, list[AttemptEnd]] = {}
    for uid, sender, report in ends:
        if uid not in facts:
            continue
        recorder = _RecordingHook()
        decide_report(facts[uid], report, sender, now=now, hook=recorder)
        if recorder.end is not None:
            found.setdefault(kinds[uid], []).append(recorder.end)
    return found


def _in_turns(ends: Sequence[AttemptEnd]) -> list[AttemptEnd]:
    """Return the first end of each job, then the second of each, and so on."""
    seen = Counter[int]()
    turns: list[tuple[int, int]] = []
    for place, end in enumerate(ends):
        turns.append((seen[end.job_id], place))
        seen[end.job_id] += 1
    return [ends[place] for _, place in sorted(turns)]


def _call(kind: str, end: AttemptEnd, meanings: EndMeanings, share: float, ends_at: float) -> None:
    hook = find_hook(kind)
    if hook is None:
        log.warning("hook_not_installed", kind=kind)
        return
    try:
        if monotonic() > ends_at:
            raise HookUnavailable(f"its calls for one batch of ends took longer than {share:g} s")
        event = Event(hook.on_end(end))
    except Exception as error:  # a failure of another package ends only the job of its kind
        text = describe_failure(kind, "on_end", error)
        log.error("hook_failed", kind=kind, job=end.job_id, attempt=end.attempt, why=text)
        meanings.failures[end.attempt] = text
    else:
        meanings.events[end.attempt] = (end, event)


def _uid(report: AttemptReport) -> UUID | None:
    try:
        return UUID(report.uid)
    except ValueError:
        return None
