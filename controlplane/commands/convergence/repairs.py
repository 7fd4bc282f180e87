"""Rule 12: repair derived states and counts that differ from their sources, page by page."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain

from controlplane.commands.convergence.job_pages import take_turn
from controlplane.commands.convergence.runner import RuleContext
from controlplane.commands.state.apply import apply
from controlplane.commands.state.cursors import count_repairs, save_walk
from controlplane.commands.state.recount import recount_jobs
from controlplane.commands.state.tick_alerts import CONTRADICTION
from controlplane.commands.state.transactions import for_each_batch
from controlplane.commands.tenancy.stored_totals import WALK, recount_totals
from controlplane.domain.integrity import InvariantViolation
from controlplane.domain.state.effects import ClearAlert, Effects, RaiseAlert
from controlplane.queries.convergence.cursors import load_cursor
from controlplane.queries.convergence.repairs import find_alerts_of_jobs
from controlplane.queries.integrity.invariants import find_page
from controlplane.queries.locks import lock_jobs

# Jobs that ended earlier than this have been checked often and do not change any more.
ENDED_SECONDS = 86_400.0


def settle(context: RuleContext) -> Mapping[str, int]:
    """Settle ended jobs without unreleased attempts."""
    job_ids = take_turn("unsettled_jobs", now=context.now).job_ids
    roll_again(job_ids, now=context.now)
    return {"settled": len(job_ids)}


def roll_again(job_ids: Sequence[int], *, now: datetime) -> None:
    """Derive jobs from their tasks again, which settles the unsettled ones."""

    def work(batch: Sequence[int]) -> None:
        jobs = lock_jobs(batch)
        apply(Effects(derived=batch), jobs=jobs, now=now, actor="convergence")

    for_each_batch(list(job_ids), work, what="settling")


def recount(context: RuleContext) -> Mapping[str, int]:
    """Repair wrong counts, flags and states in the next page of the walk over jobs."""
    page = find_page(
        int(load_cursor("recount").after or 0),
        ended_since=context.now - timedelta(seconds=ENDED_SECONDS),
        alert_kind=CONTRADICTION,
    )

    def work(batch: Sequence[int]) -> list[InvariantViolation]:
        found = recount_jobs(batch, repair=True, now=context.now)
        if repaired := _count_repaired(found):
            count_repairs("recount", {"recounted": repaired}, now=context.now)
        return found

    found = list(chain.from_iterable(for_each_batch(page.job_ids, work, what="recount")))
    texts: dict[str, list[str]] = {}
    for item in found:
        if item.repair is None:
            texts.setdefault(f"job {item.job_id}", []).append(str(item))
    over = find_alerts_of_jobs(CONTRADICTION, page.job_ids)
    effects = Effects(
        alerts=[RaiseAlert(CONTRADICTION, key, "; ".join(listed)) for key, listed in texts.items()],
        cleared=[ClearAlert(CONTRADICTION, subject) for subject in over if subject not in texts],
    )
    apply(effects, now=context.now)
    save_walk("recount", after=str(page.reached or ""), now=context.now)
    return {"recounted": _count_repaired(found)}


def recount_stored_bytes(context: RuleContext) -> Mapping[str, int]:
    """Repair the totals of stored bytes of a page of projects that differ from their sizes."""
    found = recount_totals(repair=True, now=context.now)
    save_walk(WALK, after="", now=context.now)  # each check begins anew
    return {"totals_repaired": len(found)}


def _count_repaired(found: Sequence[InvariantViolation]) -> int:
    return sum(item.repair is not None for item in found)
