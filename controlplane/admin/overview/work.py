"""Render open work for the overview: counts, bars by pool and band, the oldest and the longest."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controlplane.admin.badges import duration, list_link, page_link, shortened
from controlplane.admin.work.pending import task_notes
from controlplane.contract.states import TaskState as S
from controlplane.domain.state.states import COLOURS, name_band
from controlplane.models import Attempt, Pool, Task
from controlplane.queries.pages.work import (
    OpenWork,
    WorkCounts,
    find_longest_running,
    find_oldest_waiting,
)

SHOWN_BANDS = 30
_SHOWN_TASKS = 5
_REASON_WIDTH = 160
_HELD = ("running", S.RUNNING), ("building", S.BUILDING), ("assigned", S.ASSIGNED)


@dataclass(frozen=True, slots=True)
class Part:
    """A count of open work, which links to its list, and a part of a bar.

    `drawn`: what the bar has of it, as other parts have the rest.
    """

    name: str
    number: int
    colour: str
    address: str
    drawn: int

    def share(self, longest: int) -> float:
        """Return its percentage of the longest bar."""
        return round(100 * self.drawn / longest, 2)


@dataclass(frozen=True, slots=True)
class WorkFilter:
    """The work that a list has to show: of a pool and band, or all of it."""

    pool: Pool | None = None
    band: int | None = None

    def of_tasks(self) -> dict[str, Any]:
        """Return the filters of a list of tasks."""
        return {"pool": self.pool.name, "band": self.band} if self.pool else {}

    def of_attempts(self) -> dict[str, Any]:
        """Return the filters of a list of attempts."""
        if self.pool is None:
            return {}
        return {"cell__pool__id__exact": self.pool.pk, "job__band__exact": self.band}


def count_cards(counts: WorkCounts, may_view: Mapping[str, bool]) -> list[dict[str, Any]]:
    """Return a card for each count of open work that the user may view."""
    total = OpenWork()
    for work in counts.by_band.values():
        total.waiting += work.waiting
        total.stuck += work.stuck
        for state, number in work.held.items():
            total.held[state] = total.held.get(state, 0) + number
    return [
        {"name": it.name, "number": it.number, "colour": it.colour, "address": it.address}
        for it in _parts(total, WorkFilter(), may_view)
    ]


def work_bars(counts: WorkCounts, may_view: Mapping[str, bool]) -> list[dict[str, Any]]:
    """Return a bar for each pool and band with open work: the longest ones, by pool and band."""
    largest = sorted(counts.by_band.items(), key=lambda item: -item[1].total)[:SHOWN_BANDS]
    pools = Pool.objects.only("name").in_bulk([pool_id for (pool_id, _), _ in largest])
    longest = max((work.total for _, work in largest), default=1)
    bars = []
    for (pool_id, band), work in sorted(
        largest, key=lambda item: (pools[item[0][0]].name, item[0][1])
    ):
        pool = pools[pool_id]
        parts = [part for part in _parts(work, WorkFilter(pool, band), may_view) if part.number]
        if parts:
            shares = [(part, part.share(longest)) for part in parts]
            bars.append({"pool": pool.name, "band": name_band(band), "parts": shares})
    return bars


def _parts(work: OpenWork, chosen: WorkFilter, may_view: Mapping[str, bool]) -> Iterator[Part]:
    if may_view["attempt"]:
        held = {"held": "yes", **chosen.of_attempts()}
        for name, state in _HELD:
            number = work.held.get(state, 0)
            _, address = list_link("attempt", "", state__exact=int(state), **held)
            yield Part(name, number, COLOURS[state], address, number)
        number = work.held.get(None, 0)
        _, address = list_link("attempt", "", **held)
        yield Part("stopping", number, COLOURS[S.KILLED], address, number)
    if may_view["task"]:
        _, address = list_link("task", "", open="pending", **chosen.of_tasks())
        rest = work.waiting - work.stuck
        yield Part("waiting", work.waiting, COLOURS[S.PENDING], address, rest)
        _, address = list_link("task", "", open="stuck", **chosen.of_tasks())
        yield Part("of these stuck", work.stuck, COLOURS[S.FAILED], address, work.stuck)


def oldest_waiting(now: datetime) -> list[dict[str, Any]]:
    """Return the tasks that have waited longest, with their pending reasons."""
    since = find_oldest_waiting(_SHOWN_TASKS, now=now)
    tasks = Task.objects.select_related("job__pool", "group").only(
        "state", "index", "job__name", "job__pool__name", "group__name"
    )
    found = tasks.in_bulk(list(since))
    notes = task_notes(found.values(), now)
    return [
        {
            "task": page_link("task", key, f"{found[key].group.name}.{found[key].index}"),
            "job": page_link("job", found[key].job_id, found[key].job),
            "pool": found[key].job.pool.name,
            "length": duration(at, None),
            "reason": shortened(notes.get(key, ""), _REASON_WIDTH),
        }
        for key, at in since.items()
        if key in found
    ]


def longest_running() -> list[dict[str, Any]]:
    """Return the attempts that have been RUNNING longest."""
    uids = find_longest_running(_SHOWN_TASKS)
    attempts = Attempt.objects.select_related("job", "group", "task", "cell").only(
        "started_at", "job__name", "group__name", "task__index", "cell__name"
    )
    found = attempts.in_bulk(uids)
    return [
        {
            "task": page_link("task", it.task_id, f"{it.group.name}.{it.task.index}"),
            "job": page_link("job", it.job_id, it.job),
            "cell": page_link("cell", it.cell_id, it.cell.name),
            "length": duration(it.started_at, None),
        }
        for it in (found[uid] for uid in uids if uid in found)
    ]
