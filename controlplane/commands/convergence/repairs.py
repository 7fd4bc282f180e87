"""Rule 12: what should have followed by itself, and did not, is put right, page by page."""

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
from controlplane.domain.integrity.recount import Difference
from controlplane.domain.state.effects import ClearAlert, Effects, RaiseAlert
from controlplane.queries.convergence.cursors import load_cursor
from controlplane.queries.convergence.repairs import (
    find_alerts_of_gone_jobs,
    find_jobs_page,
    find_told_jobs,
)
from controlplane.queries.locks import lock_jobs

# Jobs that ended earlier were checked often and do not change any more.
ENDED_SECONDS = 86_400.0


def settle(look: RuleContext) -> Mapping[str, int]:
    """Jobs that have ended, and of which nothing is held any more, are settled."""
    job_ids = take_turn("unsettled_jobs", now=look.now).job_ids
    roll_again(job_ids, now=look.now)
    return {"settled": len(job_ids)}


def roll_again(job_ids: Sequence[int], *, now: datetime) -> None:
    """Derive jobs from their tasks once more: settle the unsettled ones."""

    def work(batch: Sequence[int]) -> None:
        jobs = lock_jobs(batch)
        apply(Effects(derived=batch), jobs=jobs, now=now, actor="convergence")

    for_each_batch(list(job_ids), work, what="settling")


def recount(look: RuleContext) -> Mapping[str, int]:
    """A page of the walk over jobs: counts, flags and states that do not follow are put right."""
    page = find_jobs_page(
        int(load_cursor("recount").after or 0),
        ended_since=look.now - timedelta(seconds=ENDED_SECONDS),
        told=CONTRADICTION,
    )

    def work(batch: Sequence[int]) -> list[Difference]:
        differences = recount_jobs(batch, repair=True, now=look.now)
        if mended := _count_mended(differences):
            count_repairs("recount", {"recounted": mended}, now=look.now)
        return differences

    found = list(chain.from_iterable(for_each_batch(page.job_ids, work, what="recount")))
    _tell([item for item in found if not item.is_mendable], page.job_ids, look.now)
    reached = "" if page.reached is None else str(page.reached)
    save_walk("recount", after=reached, now=look.now)
    return {"recounted": _count_mended(found)}


def _count_mended(differences: Sequence[Difference]) -> int:
    return sum(item.is_mendable for item in differences)


def _tell(left: Sequence[Difference], looked_at: list[int], now: datetime) -> None:
    """Bring before an operator what cannot be put right; what was, and is not any more, is over."""
    texts: dict[int, list[str]] = {}
    for item in left:
        texts.setdefault(item.job_id, []).append(item.text)
    told = find_told_jobs(CONTRADICTION, looked_at) if looked_at else set()
    over = [f"job {job_id}" for job_id in sorted(told - set(texts))]
    over += find_alerts_of_gone_jobs(CONTRADICTION)
    effects = Effects(
        alerts=[
            RaiseAlert(CONTRADICTION, f"job {key}", "; ".join(said)) for key, said in texts.items()
        ],
        cleared=[ClearAlert(CONTRADICTION, subject) for subject in over],
    )
    apply(effects, now=now)
