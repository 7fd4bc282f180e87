"""What kinds of other packages make of ends: asked before anything is locked, used under lock."""

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
from controlplane.domain.hooks import BUILT_IN
from controlplane.domain.hooks.interface import AttemptEnd, GroupTerms, Hook, HookUnavailable
from controlplane.domain.state.effects import Effects, RaiseAlert
from controlplane.domain.state.states import TERMINAL
from controlplane.domain.state.transitions import Event
from controlplane.queries.jobs.hook_calls import find_kinds_of_attempts
from controlplane.queries.task_facts import load_facts_of_attempts

SECONDS = 3.0
"""For all ends of one batch of reports, whose cells wait for their acknowledgement.

Kinds have equal shares of it, and within a kind jobs take turns.
"""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class EndMeanings:
    """What ends mean, by attempt. `failures`: by attempt, why its hook gave no answer."""

    events: dict[str, tuple[AttemptEnd, Event]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def hook_of(self, kind: str) -> Hook:
        """A hook that answers at once, of one that is built in or by what was asked before."""
        return hook_of(kind) if is_built_in(kind) else _HookFacts(self)


class _HookFacts:
    def __init__(self, meanings: EndMeanings) -> None:
        self._meanings = meanings

    def prepare(self, terms: GroupTerms) -> GroupTerms:
        return terms

    def on_end(self, end: AttemptEnd) -> Event:
        asked, event = self._meanings.events.get(end.attempt, (None, end.event))
        # As the cell reported it, if the attempt moved meanwhile and another question is asked now.
        return event if asked == end else end.event


class _RecordingHook:
    """Stands for a hook, to find out what one would be asked."""

    def __init__(self) -> None:
        self.end: AttemptEnd | None = None

    def prepare(self, terms: GroupTerms) -> GroupTerms:
        return terms

    def on_end(self, end: AttemptEnd) -> Event:
        self.end = end
        return end.event


def ask_about_ends(
    reported: Iterable[tuple[ReportSender, AttemptReport]], *, now: datetime
) -> EndMeanings:
    """Ask the kinds of other packages about all ends that are reported.

    To be called outside any transaction. It asks the database nothing if there are no such kinds.
    """
    meanings = EndMeanings()
    ends = [item for item in reported if item[1].state in TERMINAL] if has_others() else []
    if not ends:
        return meanings
    kinds = find_kinds_of_attempts(_uids(ends), BUILT_IN)
    questions = _questions(ends, kinds, now)
    for kind, asked in questions.items():
        share = SECONDS / len(questions)
        ends_at = monotonic() + share
        for end in _in_turns(asked):
            _ask(kind, end, meanings, share, ends_at)
    if meanings.failures:
        texts = sorted(set(meanings.failures.items()))
        alerts = {kinds[UUID(uid)]: text for uid, text in texts}
        raised = [RaiseAlert(ALERT, f"hook {kind}", text) for kind, text in alerts.items()]
        apply(Effects(alerts=raised), now=now)
    return meanings


def _questions(
    ends: Sequence[tuple[ReportSender, AttemptReport]], kinds: Mapping[UUID, str], now: datetime
) -> dict[str, list[AttemptEnd]]:
    """Return the ends that hooks classify, by kind."""
    facts = load_facts_of_attempts(list(kinds)) if kinds else {}
    found: dict[str, list[AttemptEnd]] = {}
    for sender, report in ends:
        uid = _uid(report)
        if uid is None or uid not in facts:
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


def _ask(kind: str, end: AttemptEnd, meanings: EndMeanings, share: float, ends_at: float) -> None:
    hook = find_hook(kind)
    if hook is None:
        log.warning("hook_not_installed", kind=kind)
        return
    try:
        if monotonic() > ends_at:
            raise HookUnavailable(f"its calls for one batch of ends took longer than {share:g} s")
        event = Event(hook.on_end(end))
    except Exception as error:  # whatever another package does, it ends its own job alone
        text = describe_failure(kind, "on_end", error)
        log.error("hook_failed", kind=kind, job=end.job_id, attempt=end.attempt, why=text)
        meanings.failures[end.attempt] = text
    else:
        meanings.events[end.attempt] = (end, event)


def _uids(ends: Sequence[tuple[ReportSender, AttemptReport]]) -> list[UUID]:
    return list({uid for _, report in ends if (uid := _uid(report)) is not None})


def _uid(report: AttemptReport) -> UUID | None:
    try:
        return UUID(report.uid)
    except ValueError:
        return None
