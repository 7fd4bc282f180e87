"""Replay: the recorded input of a pass as JSON, and the pass computed again from it; pure.

The record of a wrong decision in production becomes a test, together with the correct plan
(docs/placement.md).
"""

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from itertools import pairwise
from typing import Any, Union, get_args, get_origin, get_type_hints

from controlplane.domain.placement.cycle.pass_state import Plugins
from controlplane.domain.placement.cycle.place import place
from controlplane.domain.placement.cycle.plan import PlacementPlan
from controlplane.domain.placement.cycle.prefilter import PrefilterResult, latest, screen
from controlplane.domain.placement.model.snapshot import (
    EvictableAttempt,
    PassFacts,
    PoolSnapshot,
    ReleasingCapacity,
)
from controlplane.domain.placement.preemption.make_room import make_room, wants_room
from controlplane.domain.placement.preemption.preempt import Eviction
from controlplane.domain.scopes import Scope

VERSION = 2


@dataclass(frozen=True, slots=True)
class PassRecord:
    """The input of a pass. `running`, `leaving`, `leaving_scopes`: the input of preemption.

    `limit`: maximum number of tasks that the pass places.
    """

    snapshot: PoolSnapshot
    facts: PassFacts
    limit: int
    running: tuple[EvictableAttempt, ...] = ()
    leaving: tuple[ReleasingCapacity, ...] = ()
    leaving_scopes: Mapping[Scope, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of a replay. `seconds`: by step ("screen", "place", "make room"), in order."""

    screened: PrefilterResult
    plan: PlacementPlan
    evictions: Sequence[Eviction]
    seconds: Mapping[str, float]


class UnreadableRecord(ValueError):
    """The document is no record, or one of another version."""


def write_record(record: PassRecord) -> dict[str, Any]:
    """Return the record as a document of strings, numbers, lists and mappings."""
    return {"version": VERSION, **_plain(record)}


def read_record(document: object) -> PassRecord:
    """Return the record in a document of `write_record`. Raise UnreadableRecord."""
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise UnreadableRecord(f"not a record of version {VERSION}")
    try:
        found = _read(PassRecord, {name: document[name] for name in document if name != "version"})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableRecord(f"the record is invalid: {error!r}") from error
    assert isinstance(found, PassRecord), "the document was read as a record"
    return found


def replay(record: PassRecord, plugins: Plugins, timer: Callable[[], float]) -> ReplayResult:
    """Compute the pass again. `timer`: returns monotonic seconds; called between the steps only."""
    snapshot, times = record.snapshot, [timer()]
    screened = screen(snapshot, plugins)
    times.append(timer())
    plan = place(snapshot, record.facts, plugins, limit=record.limit)
    times.append(timer())
    evictions: Sequence[Eviction] = ()
    if snapshot.policy.preemption and wants_room(plan):
        evictions = make_room(
            snapshot,
            plan,
            record.facts.waiting,
            record.running,
            record.leaving,
            record.leaving_scopes,
        )
    times.append(timer())
    spent = [end - begin for begin, end in pairwise(times)]
    steps = dict(zip(("screen", "place", "make room"), spent, strict=True))
    return ReplayResult(screened, plan, evictions, steps)


def plan_document(record: PassRecord, replayed: ReplayResult) -> dict[str, Any]:
    """Return the decisions in a reproducible order, for comparison."""
    plan, waiting = replayed.plan, record.facts.waiting
    cells = {cell.cell_id: cell.name for cell in record.snapshot.cells}
    columns = plan.placements
    placed: dict[tuple[int, str], int] = {}
    for group_id, cell_id, count in zip(
        columns.group_ids, columns.cell_ids, columns.counts, strict=True
    ):
        key = group_id, cells[cell_id]
        placed[key] = placed.get(key, 0) + count
    jobs = dict(zip(waiting.group_ids, waiting.job_ids, strict=True))
    return _plain(
        {
            "placements": [
                {"job": jobs[group_id], "group": group_id, "cell": cell, "count": count}
                for (group_id, cell), count in sorted(placed.items())
            ],
            "reasons": [
                *(
                    {"shape": item.shape_id, "reason": item.reason}
                    for item in latest(replayed.screened.reasons, plan)
                ),
                *({"group": item.group_id, "reason": item.reason} for item in plan.groups),
            ],
            "rejected": [{"group": item.group_id, "reason": item.reason} for item in plan.rejected],
            "unplaced": [
                {"group": waiting.group_ids[item.row], "count": item.count}
                for item in plan.unplaced
            ],
            "evictions": [
                {
                    "group": item.need.group_id,
                    "cells": [cells[cell_id] for cell_id in item.cell_ids],
                    "counts": list(item.counts),
                    "victims": list(item.victims),
                }
                for item in replayed.evictions
            ],
            "complete": plan.complete,
        }
    )


# ------------------------------------------------------------------------- JSON and dataclasses


def _plain(value: Any) -> Any:
    """Return `value` in JSON types; a mapping with keys that are no texts as pairs."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        if all(type(key) is str for key in value):
            return {key: _plain(inner) for key, inner in sorted(value.items())}
        return [[_plain(key), _plain(inner)] for key, inner in value.items()]
    if isinstance(value, frozenset | set):
        return sorted(_plain(inner) for inner in value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(inner) for inner in value]
    return value


def _read(kind: Any, plain: Any) -> Any:
    """Return the value of type `kind` from the result of `_plain`."""
    if plain is None or kind in (Any, object):
        return plain
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        [inner] = [item for item in arguments if item is not type(None)]
        return _read(inner, plain)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints_of(kind)
        return kind(**{name: _read(hints[name], inner) for name, inner in plain.items()})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(plain)
    if kind is datetime:
        return datetime.fromisoformat(plain)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        pairs = plain.items() if isinstance(plain, dict) else plain
        return {_read(arguments[0], key): _read(arguments[1], inner) for key, inner in pairs}
    if isinstance(origin, type) and issubclass(origin, Sequence | frozenset):
        build = frozenset if issubclass(origin, frozenset) else tuple
        return build(_read(arguments[0], inner) for inner in plain)
    return plain


@cache
def _hints_of(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
