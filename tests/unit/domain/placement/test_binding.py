"""A quota that no placement of a pass can exceed does not take part in the pass."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from controlplane.domain.placement.model.binding import binding_quotas, count_waiting_by_scope
from controlplane.domain.placement.model.snapshot import ShapeFacts
from controlplane.domain.scopes import Quota, Scope, ScopeKind, ScopeLimits
from controlplane.domain.state.states import Band

SHAPE = ShapeFacts(1, Band.BATCH, 1, 2, 3, 4, {}, "container")


def waiting(*shapes: ShapeFacts) -> Mapping[Scope, int]:
    return count_waiting_by_scope(shapes)


def quota(kind: ScopeKind = ScopeKind.USER, key: int = 1, used: int = 0, **limits: Any) -> Quota:
    return Quota(Scope(kind, key), "x", ScopeLimits(**limits), running_tasks=used)


@pytest.mark.parametrize(
    ("used", "limit", "binds"), [(0, 4, False), (0, 3, True), (6, 10, False), (7, 10, True)]
)
@pytest.mark.parametrize(
    ("kind", "key"), [(ScopeKind.USER, 1), (ScopeKind.PROJECT, 2), (ScopeKind.DOMAIN, 3)]
)
def test_limit_of_tasks_binds_if_all_waiting_tasks_would_exceed_it(
    kind: ScopeKind, key: int, used: int, limit: int, binds: bool
) -> None:
    limited = quota(kind, key, used, running_tasks=limit)
    assert bool(binding_quotas([limited], waiting(SHAPE))) is binds
    halves = [replace(SHAPE, shape_id=number, count=2) for number in (1, 2)]
    assert bool(binding_quotas([limited], waiting(*halves))) is binds


@pytest.mark.parametrize(
    "limits", [{"resources": {"gpu": 99}}, {"running_jobs": 99}, {"pending_tasks": 99}]
)
def test_other_limits_may_always_bind(limits: dict[str, Any]) -> None:
    limited = quota(**limits)
    assert binding_quotas([limited], waiting(SHAPE)) == (limited,)


def test_weight_takes_part_in_the_order() -> None:
    heavy = quota(weight=2.0)
    assert binding_quotas([heavy, quota(weight=1.0)], waiting(SHAPE)) == (heavy,)
