"""Small pools in which tasks need room, from a seed: bands, gangs, quotas, tokens, all mixed.

Drawn by a seeded generator and not by Hypothesis, whose love of zeros leaves most pools without
a task to evict.
"""

from datetime import timedelta
from random import Random
from typing import Any

import numpy as np

from controlplane.domain.placement.model.interfaces import Matrix
from controlplane.domain.placement.model.snapshot import (
    CellFacts,
    EvictableAttempt,
    ReleasingCapacity,
    ShapeFacts,
)
from controlplane.domain.placement.preemption.candidates import PreemptionRequest
from controlplane.domain.scopes import Scope, ScopeKind
from controlplane.domain.state.states import Band, CellState
from tests.harness.domain.facts import NOW
from tests.properties.brute_force import World

NAMES = ("cpu_millis", "gpu", "memory_mib")
LICENCE = "licence"
LIMITED = ("cpu_millis", "gpu", "running_tasks", "running_jobs")
ELSEWHERE = 99  # a cell that takes no tasks, with members of gangs on it


class Pools:
    """Random pools and needs; `most_running` attempts at most."""

    def __init__(self, seed: int, *, most_running: int = 8, most_cells: int = 3) -> None:
        self.random = Random(seed)
        self.most_running = most_running
        self.number_of_cells = self.random.randint(1, most_cells)
        self.largest = self.random.choice([2, 4])
        self.requested_names = NAMES[: self.random.choice([1, 1, 2, 3])]
        self.has_small_needs = self.random.random() < 0.3
        self.leaving: list[ReleasingCapacity] = []
        self.world = self._world()

    def free_now(self) -> Matrix:
        """What cells have free while what is leaving is still there: resources x cells."""
        free = [[self.world.free[cell.name][name] for cell in self.world.cells] for name in NAMES]
        matrix = np.array(free, dtype=np.int64).reshape(len(NAMES), len(self.world.cells))
        for item in self.leaving:
            if item.cell_id != ELSEWHERE:
                matrix[:, item.cell_id] -= [item.resources.get(name, 0) for name in NAMES]
        return matrix

    def need(self, number: int, *, most: int = 1) -> PreemptionRequest:
        """One task, or if `most` is above 1 a gang of 2 to so many."""
        random, cells = self.random, self.number_of_cells
        resources = self._resources(1 if self.has_small_needs else self.largest + 2 * (most == 1))
        shape = ShapeFacts(
            shape_id=number,
            band=random.choice([Band.PRODUCTION] * 3 + [Band.INTERACTIVE] * 2 + [Band.BATCH]),
            owner_id=random.randint(1, 2),
            project_id=random.randint(1, 2),
            domain_id=1,
            count=1,
            resources=resources,
            task_type="container",
        )
        ways = random.randint(1, min(most, 2))
        return PreemptionRequest(
            shape=shape,
            group_id=number,
            job_id=random.randint(1, 8),
            count=random.randint(min(most, 2), most),
            usable=tuple(
                np.array([random.random() < 0.85 for _ in range(cells)]) for _ in range(ways)
            ),
            is_new_job=random.random() < 0.5,
        )

    def _resources(self, most: int) -> dict[str, int]:
        resources = {name: self.random.randint(0, most) for name in self.requested_names}
        return resources | ({LICENCE: 1} if self.random.random() < 0.15 else {})

    def _place(self) -> int:
        return (
            ELSEWHERE if self.random.random() < 0.1 else self.random.randrange(self.number_of_cells)
        )

    def _job(self, number: int) -> dict[str, Any]:
        random = self.random
        return {
            "job_id": number,
            "group_id": number,
            "band": random.choice([Band.PRODUCTION] + [Band.INTERACTIVE, Band.BATCH] * 4),
            "owner_id": random.randint(1, 2),
            "project_id": random.randint(1, 2),
            "domain_id": 1,
            "gang": number if random.random() < 0.3 else None,
        }

    def _world(self) -> World:
        random = self.random
        jobs = [self._job(number) for number in range(1, 7)]
        running = [
            EvictableAttempt(
                task_id=task_id,
                cell_id=self._place(),
                resources=self._resources(self.largest),
                began_at=NOW - timedelta(seconds=random.randint(0, 3)),
                stop_seconds=float(random.randint(0, 60)),
                is_evictable=random.random() < 0.93,
                **random.choice(jobs),
            )
            for task_id in range(random.randint(self.most_running // 2, self.most_running))
        ]
        for _ in range(random.choice([0, 0, 0, 1])):
            self.leaving.append(ReleasingCapacity(self._place(), self._resources(self.largest)))
        cells, free = [], {}
        for cell_id in range(self.number_of_cells):
            held = [item.resources for item in running if item.cell_id == cell_id]
            gone = [item.resources for item in self.leaving if item.cell_id == cell_id]
            # Below 0: room that is kept for others.
            spare = {name: random.choice([-1, 0, 0, 0, 1, 2]) for name in NAMES}
            cell = f"c{cell_id}"
            free[cell] = {
                name: sum(item.get(name, 0) for item in gone) + spare[name] for name in NAMES
            }
            capacity = {
                name: sum(item.get(name, 0) for item in held) + max(free[cell][name], 0)
                for name in NAMES
            }
            cells.append(CellFacts(cell_id, cell, CellState.READY, "one", capacity, {}))
        world = World(cells, free, running, self._limits(), {}, NOW)
        for scope, names in world.limits.items():
            world.allowances[scope] = {
                name: limit - min(world.freed_of(scope, name, running), limit + 1)
                for name, limit in names.items()
            }
        return world

    def _limits(self) -> dict[Scope | None, dict[str, int]]:
        random = self.random
        scopes = [Scope(ScopeKind.USER, 1), Scope(ScopeKind.PROJECT, 1), Scope(ScopeKind.DOMAIN, 1)]
        limits: dict[Scope | None, dict[str, int]] = {None: {LICENCE: 2}}
        for scope in random.sample(scopes, random.choice([0, 0, 1, 2])):
            names = random.sample(LIMITED, random.randint(1, 2))
            limits[scope] = {name: random.randint(3, 10) for name in names}
        return limits
