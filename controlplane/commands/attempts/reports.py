"""Reports from cells become changes, a batch in one transaction: applied or ignored, never lost."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from controlplane.commands.attempts.hook_calls import end_by_hook
from controlplane.commands.attempts.hook_ends import EndMeanings
from controlplane.commands.cache.evict import evict_corrupt
from controlplane.commands.cells.image_failures import note_image_failures
from controlplane.commands.state.apply import apply
from controlplane.contract.messages.phases import unite
from controlplane.contract.messages.reports import INPUT_CORRUPT, REGISTRY, AttemptReport
from controlplane.contract.states import FailureKind, TaskState
from controlplane.domain.cells.reports import IgnoredReport, ReportSender, decide_report
from controlplane.domain.hooks.interface import Hook
from controlplane.domain.state.effects import ChangeTask, Effects, EndJob
from controlplane.domain.state.facts import TaskFacts
from controlplane.domain.state.job_rollup import JobRow
from controlplane.domain.state.states import TERMINAL, Reason
from controlplane.queries.jobs.growth_room import with_growth_room
from controlplane.queries.locks import lock_jobs
from controlplane.queries.sql import execute
from controlplane.queries.task_facts import find_jobs_of_attempts, load_facts_of_attempts

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ReceivedReport:
    """A report with its sender, as it came out of a checked envelope."""

    sender: ReportSender
    report: AttemptReport


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Reports up to `last` are safe, if those up to `after` were."""

    sender: ReportSender
    after: int
    last: int


@dataclass(slots=True)
class ReportBatchResult:
    """What became of a batch."""

    applied: int = 0
    ignored: Counter[str] = field(default_factory=Counter)


def record_reports(
    reported: Sequence[ReceivedReport],
    acknowledgements: Sequence[Acknowledgement],
    *,
    now: datetime,
    meanings: EndMeanings | None = None,
) -> ReportBatchResult:
    """Apply the reports and note what is safe. To be called inside a transaction.

    `meanings`: what kinds of other packages made of the ends, before anything was locked.
    """
    meanings = meanings or EndMeanings()
    recorded = ReportBatchResult()
    latest = _latest(reported, recorded)
    job_of = find_jobs_of_attempts(list({uid for uid, _ in latest}))
    jobs = lock_jobs(job_of.values())
    facts = load_facts_of_attempts(list(job_of))
    facts |= _with_growth_room(facts, latest)
    changes: list[ChangeTask] = []
    endings: dict[int, EndJob] = {}
    not_pulled: list[tuple[int, int]] = []
    corrupt: dict[int, set[str]] = defaultdict(set)
    for (uid, sender), report in latest.items():
        decision = decide_report(
            facts.get(uid),
            report,
            sender,
            now=now,
            hook=_hook_of(jobs.get(job_of.get(uid, 0)), meanings),
        )
        if isinstance(decision, IgnoredReport):
            recorded.ignored[decision.why] += 1
        else:
            changes.append(decision)
            if report.uid in meanings.failures and _is_end(decision):
                text = meanings.failures[report.uid]
                endings[decision.job_id] = end_by_hook(decision.job_id, Reason.HOOK_FAILED, text)
            if report.failure_kind is FailureKind.SYSTEM and report.reason == REGISTRY:
                not_pulled.append((decision.group_id, sender.cell_id))
            if report.reason == INPUT_CORRUPT and report.message is not None:
                corrupt[decision.group_id].update(_DIGEST.findall(report.message))
    effects = Effects(changes, list(endings.values()))
    applied = apply(effects, jobs=jobs, now=now, actor="cell")
    recorded.applied = applied.changed
    recorded.ignored["stale"] += applied.stale
    note_image_failures(not_pulled, now=now)
    for group_id, digests in sorted(corrupt.items()):
        evict_corrupt(group_id, digests, now=now)
    _note_safe(acknowledgements)
    return recorded


def _with_growth_room(
    facts: Mapping[UUID, TaskFacts], latest: Mapping[tuple[UUID, ReportSender], AttemptReport]
) -> dict[UUID, TaskFacts]:
    """Return the tasks that may grow after their failure, with what their pool can ever run."""
    failed = {
        facts[uid].task_id: uid
        for (uid, _), report in latest.items()
        if report.state is TaskState.FAILED and uid in facts
    }
    found = with_growth_room(facts[uid] for uid in failed.values())
    return {failed[task_id]: item for task_id, item in found.items()}


def _hook_of(job: JobRow | None, meanings: EndMeanings) -> Hook:
    return meanings.hook_of("batch" if job is None else job.kind)


def _is_end(change: ChangeTask) -> bool:
    """Whether it ends an attempt, and does not only confirm an end."""
    attempt = change.attempt
    return (
        attempt is not None
        and attempt.state_from not in TERMINAL
        and (attempt.state_to in TERMINAL)
    )


def _latest(
    reported: Sequence[ReceivedReport], recorded: ReportBatchResult
) -> dict[tuple[UUID, ReportSender], AttemptReport]:
    """Return the newest report of each attempt, which are cumulative, with the phases of all.

    For each sender: a report about another cell's attempt must not replace the report of its own
    cell, which is acknowledged and never sent again.
    """
    latest: dict[tuple[UUID, ReportSender], AttemptReport] = {}
    for item in reported:
        try:
            key = UUID(item.report.uid), item.sender
        except ValueError:
            recorded.ignored["unknown_attempt"] += 1
            continue
        previous, report = latest.get(key), item.report
        if previous is not None:
            report = _merged(previous, report)
        latest[key] = report
    return latest


def _merged(first: AttemptReport, second: AttemptReport) -> AttemptReport:
    """Return the newer of two reports of an attempt, with the phases of both."""
    newer, older = (second, first) if first.seq < second.seq else (first, second)
    if not older.phases or older.phases == newer.phases:
        return newer
    return replace(newer, phases=unite(older.phases, newer.phases))


def _note_safe(acknowledgements: Sequence[Acknowledgement]) -> None:
    """Move each cell's `acked_seq` forward where nothing is missing below."""
    spans: dict[ReportSender, tuple[int, int]] = {}
    for item in sorted(acknowledgements, key=lambda ack: ack.after):
        first, last = spans.get(item.sender, (item.after, item.last))
        if item.after <= last:
            spans[item.sender] = (first, max(last, item.last))
    if not spans:
        return
    execute(
        """
        WITH i AS MATERIALIZED (
            SELECT l.cell_id, i.last FROM controlplane_celllease l
            JOIN unnest(%s::bigint[], %s::text[], %s::bigint[], %s::bigint[])
                 AS i(cell_id, incarnation, first, last)
              ON l.cell_id = i.cell_id AND l.incarnation = i.incarnation
             AND l.acked_seq >= i.first AND l.acked_seq < i.last
            ORDER BY l.cell_id FOR NO KEY UPDATE OF l
        )
        UPDATE controlplane_celllease l SET acked_seq = i.last FROM i WHERE l.cell_id = i.cell_id
        """,
        [
            [sender.cell_id for sender in spans],
            [sender.incarnation for sender in spans],
            [first for first, _ in spans.values()],
            [last for _, last in spans.values()],
        ],
        prepare=True,
    )
