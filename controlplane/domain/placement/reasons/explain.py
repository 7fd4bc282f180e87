"""Texts and figures of the pending reasons that placement finds for shapes and gangs.

A reason is {code, text, and figures}. API, admin and command show its text unchanged.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from controlplane.domain.constraints import is_met
from controlplane.domain.placement.model.amounts import describe_shortfall
from controlplane.domain.placement.model.capacity_matrix import CapacityMatrix, FitFailure, Mask
from controlplane.domain.placement.model.concurrency import ConcurrencyRule
from controlplane.domain.placement.model.interfaces import ValidationFailure
from controlplane.domain.placement.model.snapshot import CellFacts, PoolSnapshot, ShapeFacts

NO_CELL_MATCHES = "no_cell_matches"
INSUFFICIENT_RESOURCES = "insufficient_resources"
INSUFFICIENT_TOKENS = "insufficient_tokens"
CONCURRENCY_LIMIT = "concurrency_limit"
BUILD_SLOTS_FULL = "build_slots_full"
WAITING_FOR_GANG = "waiting_for_gang"
QUEUE_POSITION = "queue_position"

Reason = dict[str, Any]

MEMBERS_NOT_READY: Reason = {"text": "the other members are not ready yet"}


def explain_misfit(
    shape: ShapeFacts, snapshot: PoolSnapshot, matrix: CapacityMatrix, usable: Mask
) -> Reason:
    """Return why no cell takes a task of the shape now: the best cell, and its shortfall."""
    if not usable.any():
        return explain_no_cell(shape, snapshot)
    [found] = matrix.misfits([matrix.vector(shape.resources)], usable)
    return _misfit(found, matrix, shape)


def explain_misfits(
    shapes: Sequence[ShapeFacts], snapshot: PoolSnapshot, matrix: CapacityMatrix
) -> list[tuple[Reason, bool]]:
    """Return `explain_misfit` for each shape, and whether preemption could make room for it."""
    by_cells: dict[int, list[int]] = defaultdict(list)
    masks = [matrix.usable(shape) for shape in shapes]
    for index, usable in enumerate(masks):
        by_cells[id(usable)].append(index)
    found: dict[int, tuple[Reason, bool]] = {}
    for indices in by_cells.values():
        usable = masks[indices[0]]
        if not usable.any():
            found |= {at: (explain_no_cell(shapes[at], snapshot), False) for at in indices}
            continue
        requests = [matrix.vector(shapes[at].resources) for at in indices]
        for at, misfit in zip(indices, matrix.misfits(requests, usable), strict=True):
            found[at] = _misfit(misfit, matrix, shapes[at]), misfit.ever
    return [found[at] for at in range(len(shapes))]


def _misfit(found: FitFailure, matrix: CapacityMatrix, shape: ShapeFacts) -> Reason:
    if found.fitting:
        return _slots(found.fitting)
    missing = {name: lack for name, lack in zip(matrix.names, found.lacks, strict=True) if lack}
    name = matrix.cells[found.best].name
    what = describe_shortfall(missing, shape.resources)
    never, is_kept = not found.ever, found.but_for_kept
    lead = "larger than every cell of the pool" if never else "no cell has enough free capacity"
    if is_kept:
        lead = "no cell has enough free capacity that is not reserved for other tasks"
    reason = {
        "code": INSUFFICIENT_RESOURCES,
        "text": f"{lead}: {name} comes closest and lacks {what}",
        "cell": name,
        "shortfall": missing,
        "never_fits": never,
    }
    return {**reason, "kept": True} if is_kept else reason


def _slots(count: int) -> Reason:
    text = (
        "1 cell with room for it already prepares its maximum number of containers"
        if count == 1
        else f"{count} cells with room for it already prepare their maximum number of containers"
    )
    return {"code": BUILD_SLOTS_FULL, "text": text, "cells": count}


def explain_no_cell(shape: ShapeFacts, snapshot: PoolSnapshot) -> Reason:
    """Return the reason with the number of ready cells that each condition removed, in order."""
    unready = {state.value: count for state, count in sorted(snapshot.unready_cells.items())}
    figures = {
        "code": NO_CELL_MATCHES,
        "ready_cells": len(snapshot.cells),
        "unready": unready,
        "removed": {},
    }
    if not snapshot.cells:
        listed = ", ".join(f"{count} {state}" for state, count in unready.items())
        text = f"the pool has no ready cell ({listed})" if unready else "the pool has no cell"
        return {**figures, "text": text}
    removed = removed_by_conditions(shape, snapshot.cells)
    listed = ", ".join(f"{condition} ({count})" for condition, count in removed.items())
    text = f"none of the {len(snapshot.cells)} ready cells of the pool matches: removed by {listed}"
    return {**figures, "text": text, "removed": removed}


def removed_by_conditions(shape: ShapeFacts, cells: Sequence[CellFacts]) -> dict[str, int]:
    """Return the number of cells that each condition (as text) removed from the rest, in order."""
    left, removed = list(cells), dict[str, int]()

    def keep(condition: str, kept: list[CellFacts]) -> list[CellFacts]:
        if len(kept) < len(left):
            removed[condition] = len(left) - len(kept)
        return kept

    left = keep(
        f"task type {shape.task_type}", [c for c in left if shape.task_type in c.task_types]
    )
    for item in shape.constraints:
        if item.required:
            left = keep(str(item), [cell for cell in left if is_met(item, cell.labels)])
    tags = ", ".join(shape.placement_tags) or "none"
    left = keep(f"placement tags {tags}", [c for c in left if c.tags.admit(shape.placement_tags)])
    keep("cells shared with the rest of its gang", [])
    return removed


def explain_violations(violations: Sequence[ValidationFailure]) -> Reason:
    """Return the reason with all violations, and the code of the first."""
    listed = [{"code": item.code, "text": item.text, **item.figures} for item in violations]
    first = dict(violations[0].figures)
    text = "; ".join(item.text for item in violations)
    return {**first, "code": violations[0].code, "text": text, "violations": listed}


def explain_tokens(missing: Mapping[str, tuple[int, int, int]]) -> Reason:
    """Return the reason for short tokens: (used, requested, limit) by name."""
    text = "; ".join(
        f"tokens {name}: {used} used + {requested} requested > {limit} of the pool"
        for name, (used, requested, limit) in sorted(missing.items())
    )
    figures = {
        name: {"used": used, "requested": requested, "limit": limit}
        for name, (used, requested, limit) in sorted(missing.items())
    }
    return {"code": INSUFFICIENT_TOKENS, "text": text, "tokens": figures}


def explain_concurrency(
    rule: ConcurrencyRule, *, held: int, started: int, requested: int
) -> Reason:
    """Return the reason for a concurrency key: `held` attempts hold it, `started` are recent."""
    parts = list[str]()
    figures: Reason = {"code": CONCURRENCY_LIMIT, "key": rule.key}
    limit, starts = rule.limit, rule.starts
    if limit is not None and held + requested > limit:
        tasks = "1 task" if held == 1 else f"{held} tasks"
        parts.append(f"{tasks} on cells + {requested} requested > {limit} allowed")
        figures |= {"used": held, "requested": requested, "limit": limit}
    if starts is not None and started + requested > starts.count:
        parts.append(
            f"{started} started in the last {starts.seconds} s + {requested} requested"
            f" > {starts.count} allowed"
        )
        figures |= {
            "starts": {
                "used": started,
                "requested": requested,
                "limit": starts.count,
                "per_seconds": starts.seconds,
            }
        }
    return {**figures, "text": f"concurrency key {rule.key}: {'; '.join(parts)}"}


def explain_gang(
    need: int, have: int, missing: Mapping[str, Any] | None, group_by: str = ""
) -> Reason:
    """Return why a gang waits: `need` members must start together, `have` of them could.

    `missing`: the reason of the next member; None: it is not ready.
    """
    why = (missing or MEMBERS_NOT_READY)["text"]
    where = f" on cells with the same value of {group_by}" if group_by else ""
    needed = f"{need} more tasks must be placed together{where}"
    text = f"its gang starts together: {needed}, {have} could be"
    return {"code": WAITING_FOR_GANG, "text": f"{text}; {why}", "need": need, "have": have}


def explain_behind(job_id: int) -> Reason:
    """Return why a task of a strict pool was not considered: an earlier job does not fit."""
    text = f"waits behind job {job_id}, which does not fit yet (the pool is strict)"
    return {"code": QUEUE_POSITION, "text": text, "behind": job_id}


def explain_unseen() -> Reason:
    """Return the reason for a task that no pass has considered yet."""
    text = "waits for its turn: no placement pass has considered it yet"
    return {"code": QUEUE_POSITION, "text": text}


def explain_unreached() -> Reason:
    """Return the reason for a task that the pass did not reach."""
    text = "waits for its turn: the pass ended before it was considered"
    return {"code": QUEUE_POSITION, "text": text}


def explain_behind_itself() -> Reason:
    """Return `explain_behind` for an earlier group of the same job."""
    text = "waits behind another group of its job, which does not fit yet (the pool is strict)"
    return {"code": QUEUE_POSITION, "text": text}
