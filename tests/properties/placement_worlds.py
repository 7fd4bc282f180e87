"""Random pools for the properties of placement: small, crowded, and of every kind."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from controlplane.contract.states import TaskState as S
from controlplane.domain.constraints import Constraint, Operator, Tags
from controlplane.domain.placement.model.concurrency import (
    ConcurrencyRule,
    KeyUsage,
    StartRate,
)
from controlplane.domain.placement.model.policy import PoolPolicy
from controlplane.domain.placement.model.snapshot import CellFacts, GangFacts, Nomination
from controlplane.domain.scopes import Quota, ScopeKind, ScopeLimits
from controlplane.domain.state.gangs import GangGroupFacts
from controlplane.domain.state.states import Band
from tests.harness.domain.facts import NOW
from tests.unit.domain.placement.pools import Pool, Row, cell, pool, quota, row

NAMES = ("cpu_millis", "gpu", "memory_mib")
LICENCE = "licence"
ZONES = ("a", "b")


@dataclass(frozen=True)
class WorldOptions:
    """What a world may have; without gangs and nominations it can be placed task by task."""

    gangs: bool = True
    nominations: bool = True
    preferences: bool = True
    pending_limits: bool = False
    keys: bool = True
    sequencers: Sequence[str] = ("fifo", "lifo", "drf", "fair_share", "fair_projects")
    selectors: Sequence[str] = ("dispersed", "concentrated", "round_robin")


@st.composite
def cells(draw: st.DrawFn) -> list[CellFacts]:
    """Up to five, some with more in use than they have."""
    return [draw(_cell(number)) for number in range(1, draw(st.integers(0, 5)) + 1)]


@st.composite
def _cell(draw: st.DrawFn, number: int) -> CellFacts:
    capacity = {name: draw(st.integers(0, 9)) for name in NAMES}
    used = {name: draw(st.integers(0, 2 + most // 2)) for name, most in capacity.items()}
    labels = {"gb": str(draw(st.integers(1, 3)))}
    if zone := draw(st.sampled_from(["", *ZONES])):
        labels["zone"] = zone
    return cell(
        number,
        name=f"c{number}",
        capacity=capacity,
        used=draw(st.sampled_from([{}, used])),
        labels=labels,
        tags=Tags.read(draw(st.sampled_from([[], [], ["t"], ["t?"]]))),
        task_types=frozenset(draw(st.sampled_from([("container", "process"), ("container",)]))),
        start_slots=draw(st.sampled_from([None, None, None, 0, 2, 4])),
    )


_CONSTRAINTS = st.builds(
    Constraint,
    key=st.just("gb"),
    op=st.sampled_from([Operator.GE, Operator.LE, Operator.NE]),
    values=st.sampled_from([("1",), ("2",), ("3",)]),
    required=st.booleans(),
) | st.builds(
    Constraint,
    key=st.just("zone"),
    op=st.just(Operator.EQ),
    values=st.sampled_from([("a",), ("b",)]),
    required=st.booleans(),
)


@st.composite
def _shape(draw: st.DrawFn, options: WorldOptions) -> dict[str, Any]:
    """Draw the requests of a group's tasks; few kinds, so that groups often share one."""
    resources = {
        "cpu_millis": draw(st.integers(0, 3)),
        "memory_mib": draw(st.sampled_from([0, 1, 4])),
    }
    resources |= draw(st.sampled_from([{}, {}, {}, {"gpu": 1}, {LICENCE: 1}, {LICENCE: 2}]))
    constraints = draw(st.just([]) | st.lists(_CONSTRAINTS, max_size=2))
    return {
        "resources": resources,
        "constraints": tuple(c for c in constraints if c.required or options.preferences),
        "placement_tags": draw(st.sampled_from([(), (), (), ("t",)])),
        "task_type": draw(st.sampled_from(["container", "container", "process"])),
    }


_LIMITS = st.builds(
    ScopeLimits,
    resources=st.dictionaries(st.sampled_from(["cpu_millis", LICENCE]), st.integers(0, 9)),
    running_tasks=st.none() | st.integers(0, 6),
    running_jobs=st.none() | st.integers(0, 2),
    weight=st.sampled_from([1.0, 2.0, 0.5]),
)


@st.composite
def _quotas(draw: st.DrawFn, options: WorldOptions) -> tuple[Quota, ...]:
    scopes = st.sampled_from(
        [(ScopeKind.USER, 1), (ScopeKind.USER, 2), (ScopeKind.PROJECT, 1), (ScopeKind.DOMAIN, 1)]
    )
    found = []
    for kind, key in draw(st.just([]) | st.lists(scopes, unique=True, max_size=3)):
        limits = draw(_LIMITS)
        if options.pending_limits:
            limits = replace(limits, pending_tasks=draw(st.none() | st.integers(0, 5)))
        holds = draw(st.integers(0, 2))
        used = {"cpu_millis": holds * 2}
        jobs = frozenset(draw(st.sets(st.integers(1, 6), max_size=holds)))
        found.append(quota(kind, key, limits, resources=used, running_tasks=holds, jobs=jobs))
    order = list(ScopeKind)
    return tuple(sorted(found, key=lambda item: (order.index(item.scope.kind), item.scope.key)))


# Few keys, so that jobs share them, with limits of their own.
_RULES = st.just(None) | st.builds(
    ConcurrencyRule,
    key_id=st.sampled_from([1, 2]),
    key=st.just("k"),
    limit=st.none() | st.integers(1, 5),
    starts=st.none()
    | st.builds(StartRate, count=st.integers(1, 5), seconds=st.sampled_from([10, 60])),
)


@st.composite
def _key_usage(draw: st.DrawFn) -> tuple[KeyUsage, ...]:
    started = st.fixed_dictionaries({10: st.integers(0, 2), 60: st.integers(1, 3)})
    return tuple(KeyUsage(key, draw(st.integers(0, 3)), draw(started)) for key in (1, 2))


@st.composite
def policies(draw: st.DrawFn, options: WorldOptions) -> PoolPolicy:
    """Every sequencer and selector that is wished for."""
    return PoolPolicy(
        sequencer=draw(st.sampled_from(options.sequencers)),
        selector=draw(st.sampled_from(options.selectors)),
        strict_fifo=draw(st.sampled_from([False, False, True])),
        starvation_seconds=draw(st.sampled_from([None, 300.0])),
        tokens={LICENCE: draw(st.integers(0, 4))},
        cursor=draw(st.sampled_from(["", "c1", "c2", "c9"])),
    )


@st.composite
def _job(
    draw: st.DrawFn, job: int, shapes: Sequence[dict[str, Any]], options: WorldOptions
) -> tuple[list[Row], GangFacts | None]:
    is_gang = options.gangs and draw(st.booleans())
    terms: dict[str, Any] = {
        "concurrency": draw(_RULES) if options.keys else None,
        "band": draw(st.sampled_from(Band)),
        "owner_id": draw(st.integers(1, 3)),
        "project_id": draw(st.integers(1, 2)),
        "coscheduled": is_gang,
        "is_child": draw(st.sampled_from([False, False, True])),
        "is_first": is_gang and draw(st.booleans()),
    }
    rows = []
    for group in range(job * 10, job * 10 + draw(st.integers(1, 3))):
        shape = draw(st.sampled_from(shapes))
        timeout = draw(st.sampled_from([None, 30.0, 4000.0]))
        places = st.tuples(
            st.sampled_from([None, None, None, (1,), (2,), (77,), (1, 2), (77, 2, 1), (3, 1)]),
            st.sampled_from([None, None, None, 1, 2]) if options.nominations else st.none(),
        )
        for avoid, nominated in draw(st.lists(places, min_size=1, max_size=2, unique=True)):
            rows.append(
                row(
                    group,
                    draw(st.integers(1, 4)),
                    job=job,
                    avoid_cell_ids=avoid,
                    nominated_cell_id=nominated,
                    timeout_seconds=timeout,
                    **terms,
                    **shape,
                )
            )
    return rows, draw(_gang(rows)) if is_gang else None


@st.composite
def _gang(draw: st.DrawFn, rows: Sequence[Row]) -> GangFacts:
    """The gang that the rows are the waiting members of; some others run, some are not ready."""
    groups = sorted({one.group_id for one in rows})
    members = []
    for group in groups:
        waiting = sum(one.count for one in rows if one.group_id == group)
        late = draw(st.sampled_from([0, 0, 0, 0, 1]))
        counts = {S.PENDING: waiting + late}
        if rows[0].is_first:
            counts[S.RUNNING] = draw(st.integers(0, 2))
        members.append(GangGroupFacts(counts, draw(st.integers(0, sum(counts.values())))))
    least = sum(one.min_available for one in members)
    everybody = sum(sum(one.counts.values()) for one in members)
    runs = any(one.counts.get(S.RUNNING) for one in members)
    return GangFacts(
        tuple(groups),
        tuple(members),
        draw(st.integers(least, everybody)),
        group_by=draw(st.sampled_from(["", "", "zone"])),
        cell_ids=frozenset({draw(st.integers(1, 2))}) if runs else frozenset(),
    )


@st.composite
def worlds(draw: st.DrawFn, options: WorldOptions = WorldOptions()) -> Pool:
    """A pool with cells, jobs, quotas and a policy, as `options` allow."""
    shapes = draw(st.lists(_shape(options), min_size=1, max_size=4))
    rows: list[Row] = []
    gangs: dict[int, GangFacts] = {}
    for job in range(1, draw(st.integers(0, 6)) + 1):
        more, gang = draw(_job(job, shapes, options))
        rows += more
        if gang is not None:
            gangs[job] = gang
    there = draw(cells())
    known = {one.cell_id for one in there}
    rows = [
        one if one.nominated_cell_id in known else replace(one, nominated_cell_id=None)
        for one in rows
    ]
    begins = {key: draw(st.sampled_from([None, 60, 100, 9999])) for key in sorted(known)}
    owners = st.dictionaries(st.just("cpu_millis"), st.integers(0, 5))
    return pool(
        there,
        *_merged(rows),
        gangs=gangs,
        policy=draw(policies(options)),
        quotas=draw(_quotas(options)),
        tokens_used={LICENCE: draw(st.integers(0, 2))},
        owner_usage=draw(st.dictionaries(st.integers(1, 3), owners)),
        project_usage=draw(st.dictionaries(st.integers(1, 3), owners)),
        key_usage=draw(_key_usage()),
        nominations=tuple(
            Nomination(
                one.nominated_cell_id,
                one.group_id,
                one.count,
                NOW + timedelta(hours=1),
                None
                if (seconds := begins[one.nominated_cell_id]) is None
                else NOW + timedelta(seconds=seconds),
            )
            for one in rows
            if one.nominated_cell_id is not None
        ),
    )


def _merged(rows: Sequence[Row]) -> list[Row]:
    """Rows of one group that avoid the same, and are nominated to the same, are one."""
    found: dict[tuple[object, ...], Row] = {}
    for one in rows:
        key = (one.group_id, one.avoid_cell_ids, one.nominated_cell_id)
        before = found.get(key)
        found[key] = one if before is None else replace(one, count=one.count + before.count)
    return list(found.values())
