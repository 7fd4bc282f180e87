"""The rules of preemption once more, in the plainest words: try every set of victims."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import combinations

from controlplane.domain.placement.model.snapshot import CellFacts, EvictableAttempt
from controlplane.domain.placement.preemption.candidates import Allowance, PreemptionRequest
from controlplane.domain.placement.preemption.preempt import Eviction
from controlplane.domain.scopes import Scope, ScopeKind
from controlplane.domain.state.states import Band

MILLION = 10**6


@dataclass
class Outcome:
    """What a set of victims costs, and where the need's tasks then go: by name of the cell."""

    interactive: int
    batch: int
    surplus: int
    age: int
    counts: dict[str, int]

    @property
    def rank(self) -> tuple[object, ...]:
        return self.interactive, self.batch, self.surplus, self.age, sorted(self.counts.items())


@dataclass
class World:
    """A pool as plain dicts. `free`: by name of the cell, with what is leaving, less what is kept.

    `allowances`: by scope and name, what is free.
    """

    cells: list[CellFacts]
    free: dict[str, dict[str, int]]
    running: list[EvictableAttempt]
    limits: dict[Scope | None, dict[str, int]]
    allowances: dict[Scope | None, dict[str, int]]
    now: datetime
    jobs: set[int] = field(default_factory=set)

    def as_allowances(self) -> list[Allowance]:
        return [
            Allowance(scope, limits, self.allowances[scope])
            for scope, limits in self.limits.items()
        ]

    def name_of(self, cell_id: int) -> str:
        return next((cell.name for cell in self.cells if cell.cell_id == cell_id), "elsewhere")

    # ------------------------------------------------------------------------------- the rules

    def units(self, band: Band) -> list[list[EvictableAttempt]]:
        """What may be evicted for `band`, each whole."""
        gangs = {item.gang for item in self.running if item.gang is not None}
        units = [[item] for item in self.running if item.gang is None]
        units += [[item for item in self.running if item.gang == gang] for gang in sorted(gangs)]
        return [
            unit for unit in units if all(item.is_evictable and item.band > band for item in unit)
        ]

    def lacks(self, need: PreemptionRequest) -> dict[Scope | None, dict[str, int]]:
        """What is lacking of quotas and tokens."""
        request = {name: amount * need.count for name, amount in need.shape.resources.items()}
        request["running_tasks"] = need.count
        request["running_jobs"] = int(need.is_new_job and need.job_id not in self.jobs)
        lacks: dict[Scope | None, dict[str, int]] = {}
        for scope in (None, *need.shape.scopes()):
            for name, free in self.allowances.get(scope, {}).items():
                if request.get(name, 0) > 0 and request[name] > free:
                    lacks.setdefault(scope, {})[name] = request[name] - free
        return lacks

    def freed_of(self, scope: Scope | None, name: str, victims: Sequence[EvictableAttempt]) -> int:
        here = [item for item in victims if scope is None or scope in _scopes(item)]
        if name == "running_tasks":
            return len(here)
        if name == "running_jobs":
            stay = {item.job_id for item in self.running if item not in victims}
            return len({item.job_id for item in here} - stay)
        return sum(item.resources.get(name, 0) for item in here)

    def outcomes(
        self, need: PreemptionRequest, victims: Sequence[EvictableAttempt]
    ) -> Iterator[Outcome]:
        """Where the need's tasks can go once `victims` are gone; nothing: they do not fit."""
        lacks = self.lacks(need)
        surplus = 0
        for scope, names in lacks.items():
            freed = {name: self.freed_of(scope, name, victims) for name in names}
            if any(freed[name] < names[name] for name in names):
                return
            surplus += max(
                (freed[name] - names[name]) * MILLION // max(self.limits[scope][name], 1)
                for name in names
            )
        for usable in need.usable:
            for counts in self._ways(need, victims, usable.tolist()):
                beyond = sum(self._beyond(need, victims, *item) for item in counts.items())
                yield Outcome(
                    sum(item.band is Band.INTERACTIVE for item in victims),
                    sum(item.band is Band.BATCH for item in victims),
                    surplus + beyond,
                    sum(
                        (self.now - item.began_at) // timedelta(microseconds=1) for item in victims
                    ),
                    counts,
                )

    def _ways(
        self, need: PreemptionRequest, victims: Sequence[EvictableAttempt], usable: Sequence[bool]
    ) -> Iterator[dict[str, int]]:
        rooms = {
            cell.name: self._room(need, victims, cell)
            for cell, may in zip(self.cells, usable, strict=True)
            if may
        }
        if need.count == 1:
            yield from ({name: 1} for name, room in rooms.items() if room)
            return
        left = {self.name_of(item.cell_id) for item in victims}
        counts, open_tasks = {}, need.count
        for name in sorted(rooms, key=lambda name: (name not in left, name)):
            if count := min(rooms[name], open_tasks):
                counts[name] = count
                open_tasks -= count
        if not open_tasks:
            yield counts

    def _freed_on(self, victims: Sequence[EvictableAttempt], cell: str) -> dict[str, int]:
        freed = dict.fromkeys(self.free[cell], 0)
        for item in victims:
            if self.name_of(item.cell_id) == cell:
                for name in freed:
                    freed[name] += item.resources.get(name, 0)
        return freed

    def _room(
        self, need: PreemptionRequest, victims: Sequence[EvictableAttempt], cell: CellFacts
    ) -> int:
        freed = self._freed_on(victims, cell.name)
        fits = [
            (self.free[cell.name][name] + freed[name]) // need.shape.resources[name]
            for name in freed
            if need.shape.resources.get(name, 0)
        ]
        return max(min([*fits, need.count]), 0)

    def _beyond(
        self, need: PreemptionRequest, victims: Sequence[EvictableAttempt], cell: str, count: int
    ) -> int:
        capacity = next(item.capacity for item in self.cells if item.name == cell)
        shares = [0]
        for name, freed in self._freed_on(victims, cell).items():
            requested = need.shape.resources.get(name, 0) * count
            lack = max(requested - self.free[cell][name], 0) if requested else 0
            shares.append(max(freed - lack, 0) * MILLION // max(capacity[name], 1))
        return max(shares)

    def sets(self, need: PreemptionRequest) -> Iterator[list[EvictableAttempt]]:
        """Every set of victims that is allowed."""
        units = self.units(need.shape.band)
        for size in range(len(units) + 1):
            for chosen in combinations(units, size):
                yield [item for unit in chosen for item in unit]

    def best(self, need: PreemptionRequest) -> Outcome | None:
        """The best outcome of all."""
        found = (outcome for victims in self.sets(need) for outcome in self.outcomes(need, victims))
        return min(found, key=lambda outcome: outcome.rank, default=None)

    # -------------------------------------------------------------------------------- going on

    def victims_of(self, eviction: Eviction) -> list[EvictableAttempt]:
        return [item for item in self.running if item.task_id in eviction.victims]

    def counts_of(self, eviction: Eviction) -> dict[str, int]:
        pairs = zip(eviction.cell_ids, eviction.counts, strict=True)
        return {self.name_of(cell_id): count for cell_id, count in pairs}

    def book(self, eviction: Eviction) -> None:
        """The victims are gone, and the need's tasks have come."""
        need, victims = eviction.need, self.victims_of(eviction)
        for scope, names in self.allowances.items():
            for name in names:
                names[name] += self.freed_of(scope, name, victims)
        for cell, free in self.free.items():
            for name, amount in self._freed_on(victims, cell).items():
                free[name] += amount
        self.running = [item for item in self.running if item not in victims]
        for cell, count in self.counts_of(eviction).items():
            for name in self.free[cell]:
                self.free[cell][name] -= need.shape.resources.get(name, 0) * count
        for scope in (None, *need.shape.scopes()):
            for name in self.allowances.get(scope, {}):
                amount = need.shape.resources.get(name, 0) * need.count
                if name == "running_tasks":
                    amount = need.count
                if name == "running_jobs":
                    amount = int(need.is_new_job and need.job_id not in self.jobs)
                self.allowances[scope][name] -= amount
        self.jobs.add(need.job_id)


def _scopes(item: EvictableAttempt) -> tuple[Scope, ...]:
    return (
        Scope(ScopeKind.USER, item.owner_id),
        Scope(ScopeKind.PROJECT, item.project_id),
        Scope(ScopeKind.DOMAIN, item.domain_id),
    )
