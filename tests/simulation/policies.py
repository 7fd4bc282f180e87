"""Pools and quotas of a simulation: plain as installed, or such that submitters contend."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from controlplane.domain.placement.model.policy import DEFAULT_VALIDATORS
from controlplane.domain.scopes import ScopeKind

SECOND = "second"
CONTENDER = "contender"
TOKEN = "licence"
FPGA = "fpga"
ZONE = "zone"
ZONES = ("a", "b")
# What draws of jobs rely on: the largest gang takes 2,250 and all that is endless 250.
_LEAST_CPU = 2500
# Of CONTENDER's jobs the largest gang has so many members.
_LEAST_TASKS = 4


@dataclass(frozen=True, slots=True)
class Policies:
    """What is set before anything happens. `pools`: the fields of each, by name."""

    pools: dict[str, dict[str, Any]] = field(default_factory=dict)
    quotas: dict[ScopeKind, dict[str, Any]] = field(default_factory=dict)


def draw_start_slots(seed: int) -> int | None:
    """Draw how many containers a cell prepares at once; None: as many as it gets.

    Few enough that gangs have more members than a cell has slots.
    """
    return Random(f"start slots of {seed}").choice([None, None, 1, 2, 3, 8])


def draw_policies(rng: Random) -> Policies:
    """Two pools of different policies, and quotas that all jobs fit into, one after another."""
    pools = {name: _draw_pool(rng) for name in ("default", SECOND)}
    quotas: dict[ScopeKind, dict[str, Any]] = {}
    if rng.random() < 0.6:
        quotas[ScopeKind.USER] = {
            "running_tasks": rng.choice([None, _LEAST_TASKS, 6]),
            "running_jobs": rng.choice([None, 1, 2]),
            "resources": rng.choice([{}, {"cpu_millis": 1000}, {"cpu_millis": 2000}]),
            "weight": rng.choice([0.5, 1.0, 3.0]),
            "pending_tasks": rng.choice([None, None, 2]),
        }
    if rng.random() < 0.3:
        kind = rng.choice([ScopeKind.PROJECT, ScopeKind.DOMAIN])
        quotas[kind] = {"resources": {"cpu_millis": rng.choice([_LEAST_CPU, 3000, 4000])}}
    return Policies(pools, quotas)


def _draw_pool(rng: Random) -> dict[str, Any]:
    validators = list(DEFAULT_VALIDATORS)
    if rng.random() < 0.2:
        validators = []  # what runs here is held to no quota
    return {
        "sequencer": rng.choice(["fifo", "fifo", "lifo", "drf", "fair_share"]),
        "selector": rng.choice(["dispersed", "concentrated", "round_robin"]),
        "validators": validators,
        "strict_fifo": rng.random() < 0.2,
        "preemption": rng.random() < 0.85,
        "starvation_seconds": rng.choice([None, 10, 300]),
        "tokens": {TOKEN: rng.randint(2, 3)},
    }
