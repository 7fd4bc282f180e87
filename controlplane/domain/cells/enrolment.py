"""Enrolment: what operators fixed of a cell, compared with what the cell reports of itself.

The pool and the labels below `node/` are the operators' alone, as with the NodeRestriction of
Kubernetes, and so are the tags if operators fix them. Other labels are the cell's, and its capacity
is, up to a ceiling. A cell that reports something else gets no work.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from controlplane.domain.placement.model.amounts import describe_amount
from controlplane.domain.state.effects import RaiseAlert
from controlplane.domain.state.states import CellState
from controlplane.spec.placing import OWN_TAGS, PROTECTED_PREFIX

MISMATCH = "cell_mismatch"
"""Kind of alert about a cell that reports something else than its enrolment."""

_HOLD = "it differs from its enrolment: "
_MAX_CHARS = 1000
_MAX_REASON_CHARS = 255


@dataclass(frozen=True, slots=True)
class Enrolment:
    """What operators fixed: pool, labels below `node/`, a ceiling of the capacity, and tags."""

    pool: str
    node_labels: Mapping[str, str] = field(default_factory=dict)
    max_capacity: Mapping[str, int] = field(default_factory=dict)
    fixed_tags: Sequence[str] = (OWN_TAGS,)

    @property
    def has_own_tags(self) -> bool:
        """Return whether the cell chooses its tags."""
        return list(self.fixed_tags) == [OWN_TAGS]


@dataclass(frozen=True, slots=True)
class Claims:
    """What a cell reports of itself. An empty `pool`: that of its enrolment."""

    pool: str
    labels: Mapping[str, str]
    capacity: Mapping[str, int]
    tags: Sequence[str]

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        """Return the claims from their stored form (`as_dict`)."""
        # A release without tags may store claims until its processes are restarted.
        tags = document.get("tags", [])
        return cls(document["pool"], document["labels"], document["capacity"], tags)

    def as_dict(self) -> dict[str, Any]:
        """Return the stored form: {pool, labels, capacity, tags}."""
        return {
            "pool": self.pool,
            "labels": dict(self.labels),
            "capacity": dict(self.capacity),
            "tags": list(self.tags),
        }


@dataclass(frozen=True, slots=True)
class EffectiveFacts:
    """The labels, capacity and tags that placement uses. `mismatch`: as text; empty: none."""

    labels: Mapping[str, str]
    capacity: Mapping[str, int]
    tags: Sequence[str]
    mismatch: str


def compare_claims(enrolment: Enrolment, claims: Claims) -> EffectiveFacts:
    """Return what counts of the claims of a cell, and how they differ from its enrolment."""
    ceiling = enrolment.max_capacity
    return EffectiveFacts(
        labels={**own_labels(claims.labels), **enrolment.node_labels},
        capacity={
            name: min(amount, ceiling.get(name, amount)) for name, amount in claims.capacity.items()
        },
        tags=list(claims.tags if enrolment.has_own_tags else enrolment.fixed_tags),
        mismatch="; ".join(_differences(enrolment, claims))[:_MAX_CHARS],
    )


def own_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that are the cell's own."""
    return {name: value for name, value in labels.items() if not name.startswith(PROTECTED_PREFIX)}


def own_tags(tags: Sequence[str], fixed: Sequence[str]) -> list[str]:
    """Return the tags that are the cell's own: none if operators fix them."""
    return list(tags) if list(fixed) == [OWN_TAGS] else []


def _differences(enrolment: Enrolment, claims: Claims) -> Iterator[str]:
    if claims.pool not in ("", enrolment.pool):
        yield f"it reports pool {claims.pool}, but is enrolled in pool {enrolment.pool}"
    for name, value in sorted(claims.labels.items()):
        fixed = enrolment.node_labels.get(name)
        if name.startswith(PROTECTED_PREFIX) and value != fixed:
            given = "without this label" if fixed is None else f"with {name}={fixed}"
            yield f"it reports the label {name}={value}, but is enrolled {given}"
    wanted, reported = sorted(enrolment.fixed_tags), sorted(claims.tags)
    if reported and not enrolment.has_own_tags and reported != wanted:
        given = f"with {', '.join(wanted)}" if wanted else "without tags"
        yield f"it reports the tags {', '.join(reported)}, but is enrolled {given}"
    for name, amount in sorted(claims.capacity.items()):
        ceiling = enrolment.max_capacity.get(name)
        if ceiling is not None and amount > ceiling:
            yield (
                f"it reports a capacity of {describe_amount(name, amount)}, but is enrolled with"
                f" at most {describe_amount(name, ceiling)}"
            )


def describe_hold(mismatch: str) -> str:
    """Return the reason of a cell that is CORDONED because of a mismatch."""
    return f"{_HOLD}{mismatch}"[:_MAX_REASON_CHARS]


def decide_held_state(
    state: CellState, ordered: CellState, reason: str, *, before: str, after: str, actor: str
) -> tuple[CellState, str]:
    """Return state and reason of a cell whose enrolment `actor` changed.

    `before`, `after`: its mismatch. Only a mismatch changes: other causes of a state remain.
    """
    was_held = (
        state is CellState.CORDONED
        and ordered is CellState.READY
        and bool(before)
        and reason == describe_hold(before)
    )
    if after and (was_held or state is CellState.READY):
        return CellState.CORDONED, describe_hold(after)
    if was_held:
        return CellState.READY, f"its enrolment was changed by {actor}"
    return state, reason


def mismatch_alert(name: str, mismatch: str) -> RaiseAlert:
    """Return the alert about a cell that differs from its enrolment."""
    text = (
        f"cell {name} gets no work, because it differs from its enrolment: {mismatch}. Correct the"
        " settings of the cell and restart it, or change its enrolment"
    )
    return RaiseAlert(MISMATCH, name, text)
