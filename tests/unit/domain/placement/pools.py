"""Pools for tests of placement, in a line or two: cells, rows that wait, what came of a pass."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from controlplane.contract.states import TaskState as S
from controlplane.domain.placement.cycle.pass_state import Plugins
from controlplane.domain.placement.cycle.place import place
from controlplane.domain.placement.cycle.plan import PlacementPlan
from controlplane.domain.placement.cycle.prefilter import PrefilterResult, screen
from controlplane.domain.placement.model.policy import PoolPolicy
from controlplane.domain.placement.model.snapshot import (
    CellFacts,
    GangFacts,
    PassFacts,
    PendingRows,
    PoolSnapshot,
    ShapeFacts,
)
from controlplane.domain.placement.plugins.selectors import BUILT_IN as SELECTORS
from controlplane.domain.placement.plugins.sequencers import BUILT_IN as SEQUENCERS
from controlplane.domain.placement.plugins.validators import BUILT_IN as VALIDATORS
from controlplane.domain.scopes import Quota, Scope, ScopeKind, ScopeLimits
from controlplane.domain.state.gangs import GangGroupFacts
from controlplane.domain.state.states import Band, CellState
from tests.harness.domain.facts import NOW

DOMAIN = 1


def cell(number: int, *, cpu: int = 8000, memory: int = 8192, **changes: Any) -> CellFacts:
    """A READY cell that runs containers."""
    facts: dict[str, Any] = {
        "cell_id": number,
        "name": f"cell-{number:03}",
        "state": CellState.READY,
        "incarnation": "one",
        "capacity": {"cpu_millis": cpu, "memory_mib": memory},
        "used": {},
        "task_types": frozenset({"container"}),
    }
    return CellFacts(**{**facts, **changes})


@dataclass(frozen=True)
class Row:
    """`count` waiting tasks of one group; `shape`: what they request, without number and count."""

    group_id: int
    job_id: int
    count: int
    shape: ShapeFacts
    is_first: bool = False
    is_child: bool = False
    since: datetime | None = NOW
    timeout_seconds: float | None = None
    avoid_cell_ids: tuple[int, ...] | None = None
    prefer_cell_id: int | None = None
    nominated_cell_id: int | None = None
    reason: Mapping[str, object] | None = None
    rank: int = 0


_OF_ROWS = set(Row.__dataclass_fields__)


def row(
    group: int = 1, count: int = 1, *, job: int | None = None, cpu: int = 1000, **changes: Any
) -> Row:
    """A row of a job of its own, or of `job`. `changes`: of the row and its shape.

    Among them `avoid_cell_id`, the only cell that its tasks avoid.
    """
    avoided = changes.pop("avoid_cell_id", None)
    if avoided is not None:
        changes["avoid_cell_ids"] = (avoided,)
    shape: dict[str, Any] = {
        "shape_id": 0,
        "band": Band.INTERACTIVE,
        "owner_id": 1,
        "project_id": 1,
        "domain_id": DOMAIN,
        "count": 0,
        "resources": {"cpu_millis": cpu, "memory_mib": 64},
        "task_type": "container",
    }
    shape |= {name: value for name, value in changes.items() if name not in _OF_ROWS}
    of_row = {name: value for name, value in changes.items() if name in _OF_ROWS}
    return Row(group, group if job is None else job, count, ShapeFacts(**shape), **of_row)


def gang(*groups: tuple[int, int, int], least: int | None = None, **changes: Any) -> GangFacts:
    """A gang of which all waits. Groups as (id, minimum, waiting); `least`: of all together."""
    members = tuple(GangGroupFacts({S.PENDING: waiting}, minimum) for _, minimum, waiting in groups)
    wanted = sum(minimum for _, minimum, _ in groups) if least is None else least
    return GangFacts(tuple(group for group, _, _ in groups), members, wanted, **changes)


def quota(kind: ScopeKind, key: int, limits: ScopeLimits, **changes: Any) -> Quota:
    """A quota of which nothing is used yet."""
    return Quota(Scope(kind, key), f"{kind}-{key}", limits, **changes)


@dataclass(frozen=True)
class Pool:
    """A pool and all that waits in it, as the two steps of a pass are given it."""

    snapshot: PoolSnapshot
    facts: PassFacts
    rows: tuple[Row, ...] = field(repr=False, default=())

    @property
    def plugins(self) -> Plugins:
        """The built-in plugins that the policy names."""
        policy = self.snapshot.policy
        return Plugins(
            SEQUENCERS[policy.sequencer](),
            SELECTORS[policy.selector](),
            tuple(VALIDATORS[name]() for name in policy.validators),
        )

    def place(self, limit: int = 10_000) -> PlacementPlan:
        """Return the plan of a pass over every row."""
        return place(self.snapshot, self.facts, self.plugins, limit=limit)

    def screen(self) -> PrefilterResult:
        """The first step of a pass."""
        return screen(self.snapshot, self.plugins)

    def with_policy(self, **changes: Any) -> "Pool":
        """The same pool under another policy."""
        policy = replace(self.snapshot.policy, **changes)
        return replace(self, snapshot=replace(self.snapshot, policy=policy))


def pool(
    cells: Sequence[CellFacts],
    *rows: Row,
    gangs: Mapping[int, GangFacts] | None = None,
    policy: PoolPolicy | None = None,
    **rest: Any,
) -> Pool:
    """A pool in which `rows` wait: those with the same requests are of one shape."""
    ordered = sorted(rows, key=lambda one: (one.shape.band, one.rank, one.job_id))
    numbers: dict[str, int] = {}
    places = [numbers.setdefault(repr(one.shape), len(numbers) + 1) for one in ordered]
    counts: Counter[int] = Counter()
    for number, one in zip(places, ordered, strict=True):
        counts[number] += one.count
    known = dict(zip(places, (one.shape for one in ordered), strict=True))
    shapes = tuple(
        replace(known[number], shape_id=number, count=counts[number]) for number in sorted(known)
    )
    snapshot = PoolSnapshot(1, "default", NOW, policy or PoolPolicy(), tuple(cells), shapes, **rest)
    return Pool(snapshot, PassFacts(_waiting(ordered, places), gangs or {}), tuple(ordered))


def _waiting(rows: Sequence[Row], shape_ids: Sequence[int]) -> PendingRows:
    return PendingRows(
        shape_ids=shape_ids,
        group_ids=[one.group_id for one in rows],
        job_ids=[one.job_id for one in rows],
        counts=[one.count for one in rows],
        is_first=[one.is_first for one in rows],
        is_child=[one.is_child for one in rows],
        since=[one.since for one in rows],
        timeout_seconds=[one.timeout_seconds for one in rows],
        avoid_cell_ids=[one.avoid_cell_ids for one in rows],
        nominated_cell_ids=[one.nominated_cell_id for one in rows],
        prefer_cell_ids=[one.prefer_cell_id for one in rows],
        reasons=[one.reason for one in rows],
        ranks=[one.rank for one in rows],
    )


@dataclass(frozen=True)
class Outcome:
    """A plan, and the pool that it is for."""

    pool: Pool
    plan: PlacementPlan

    @property
    def placed(self) -> dict[int, int]:
        """How many of each group got a place."""
        return _sums(self.plan.placements.group_ids, self.plan.placements.counts)

    @property
    def per_cell(self) -> dict[int, int]:
        """How many each cell got."""
        return _sums(self.plan.placements.cell_ids, self.plan.placements.counts)

    @property
    def reasons(self) -> dict[int, dict[str, Any]]:
        """Return the new reasons of the plan by group, as part of its gang or by its shape."""
        news = {item.shape_id: item.reason for item in self.plan.shapes if item.reason is not None}
        waiting = self.pool.facts.waiting
        columns = zip(waiting.group_ids, waiting.shape_ids, strict=True)
        found = {group: dict(news[shape]) for group, shape in columns if shape in news}
        return found | {item.group_id: dict(item.reason) for item in self.plan.groups}

    def where(self, group: int) -> dict[int, int]:
        """How many of a group each cell got."""
        lines = self.plan.placements
        mine = [n for n, found in enumerate(lines.group_ids) if found == group]
        return _sums([lines.cell_ids[n] for n in mine], [lines.counts[n] for n in mine])


def run(cells: Sequence[CellFacts], *rows: Row, limit: int = 10_000, **rest: Any) -> Outcome:
    """What comes of one pass over a pool in which `rows` wait."""
    waited = pool(cells, *rows, **rest)
    return Outcome(waited, waited.place(limit))


def _sums(keys: Sequence[int], counts: Sequence[int]) -> dict[int, int]:
    sums: Counter[int] = Counter()
    for key, count in zip(keys, counts, strict=True):
        sums[key] += count
    return dict(sums)
