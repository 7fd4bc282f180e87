"""Growth of a task's request by retry rules: factors and amounts, and what its pool can fit.

Sources: Nextflow (`memory { 2.GB * task.attempt }`, `resourceLimits`); Snakemake (`mem_mb` as a
function of `attempt`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from controlplane.spec.quantities import (
    MAX_CPU_MILLIS,
    MAX_MIB,
    Increase,
    format_cpu,
    format_increase,
    format_mib,
)

NAMES: Mapping[str, str] = MappingProxyType(
    {"cpu": "cpu_millis", "memory": "memory_mib", "disk": "disk_mib"}
)
"""The resources that may grow: names in jobs, and in requests."""

_SHOWN = MappingProxyType({stored: name for name, stored in NAMES.items()})


@dataclass(frozen=True, slots=True)
class ResourceGrowth:
    """The growth of one resource: to `percent` of the request, at most `most`, or to `amount`."""

    name: str
    percent: int | None = None
    amount: int = 0
    most: int | None = None

    def grow(self, current: int) -> int:
        """Return the amount after `current`, rounded up; it is never lower."""
        if self.percent is None:
            wanted = self.amount
        else:
            wanted = -(-current * self.percent // 100)
        largest = MAX_CPU_MILLIS if self.name == "cpu_millis" else MAX_MIB
        if self.most is not None:
            largest = min(largest, self.most)
        return max(current, min(wanted, largest))

    def describe(self) -> str:
        """Return the growth as text: "memory 2x, at most 16Gi", "cpu to 4"."""
        if self.percent is None:
            return f"{_SHOWN[self.name]} to {describe(self.name, self.amount)}"
        factor = format_increase(Increase(self.percent), str)
        most = "" if self.most is None else f", at most {describe(self.name, self.most)}"
        return f"{_SHOWN[self.name]} {factor}{most}"

    def as_dict(self) -> dict[str, int]:
        """Return the growth as stored, without its name."""
        found = {"percent": self.percent, "amount": self.amount, "most": self.most}
        return {name: value for name, value in found.items() if value}


def read_growth(stored: Mapping[str, Mapping[str, Any]]) -> tuple[ResourceGrowth, ...]:
    """Return the growth of a stored rule."""
    return tuple(ResourceGrowth(name, **values) for name, values in stored.items())


@dataclass(frozen=True, slots=True)
class GrowthRoom:
    """What can ever run: capacities of the pool's cells that may run the task, and quotas.

    `limits`: title of the scope, resource and its limit. `tokens`: names of resources that the pool
    has, not its cells.
    """

    pool: str
    cells: Sequence[Mapping[str, int]] = ()
    limits: Sequence[tuple[str, str, int]] = ()
    tokens: Collection[str] = ()

    def refuse(self, request: Mapping[str, int], grown: Sequence[str]) -> str:
        """Return why no cell can ever run `request`; empty if one can, or if there is no cell."""
        for title, name, limit in self.limits:
            if name in grown and request[name] > limit:
                return f"the quota of {title} has {describe(name, limit)}"
        request = {name: n for name, n in request.items() if name not in self.tokens}
        if not self.cells or any(_fits(request, cell) for cell in self.cells):
            return ""
        which = f"no cell of pool {self.pool} that may run the task has"
        for name in grown:
            largest = max(cell.get(name, 0) for cell in self.cells)
            if largest < request[name]:
                return f"{which} more than {describe(name, largest)}"
        amounts = [
            f"{_SHOWN.get(name, name)} {describe(name, amount)}"
            for name, amount in sorted(request.items())
        ]
        return f"{which} {' and '.join(amounts)} together"


def _fits(request: Mapping[str, int], cell: Mapping[str, int]) -> bool:
    return all(cell.get(name, 0) >= amount for name, amount in request.items())


@dataclass(frozen=True, slots=True)
class GrownRequest:
    """The result of growth. `resources`: None if the request stays. `refusal`: why it cannot be.

    `text`: the effect, for the history.
    """

    resources: Mapping[str, int] | None
    text: str
    refusal: str = ""


def grow(
    growth: Sequence[ResourceGrowth], request: Mapping[str, int], room: GrowthRoom | None
) -> GrownRequest:
    """Return the request after `request`; `room`: None if nothing bounds it."""
    after = {item.name: item.grow(request.get(item.name, 0)) for item in growth}
    grown = [name for name, amount in after.items() if amount != request.get(name, 0)]
    text = ", ".join(_describe_change(name, request.get(name, 0), after[name]) for name in after)
    if not grown:
        return GrownRequest(None, text)
    resources = {**request, **after}
    refusal = room.refuse(resources, grown) if room is not None else ""
    if refusal:
        wanted = " and ".join(f"{_SHOWN[name]} to {describe(name, after[name])}" for name in grown)
        refusal = f"increases {wanted}, and {refusal}"
    return GrownRequest(resources, text, refusal)


def foresee(
    growth: Sequence[ResourceGrowth],
    request: Mapping[str, int],
    room: GrowthRoom,
    *,
    retries: int,
) -> tuple[list[Mapping[str, int]], str]:
    """Return the requests of the retries if one rule decides on all, each different one once.

    Also why there is no further one; empty if the retries or the growth end before.
    """
    requests: list[Mapping[str, int]] = []
    for _ in range(retries):
        grown = grow(growth, request, room)
        if grown.resources is None or grown.refusal:
            return requests, grown.refusal
        request = grown.resources
        requests.append(request)
    return requests, ""


def describe(name: str, amount: int) -> str:
    """Return an amount as it is written in a job: "0.5", "64Mi"."""
    if name == "cpu_millis":
        return format_cpu(amount)
    return format_mib(amount) if name.endswith("_mib") else str(amount)


def _describe_change(name: str, before: int, after: int) -> str:
    if before == after:
        return f"{_SHOWN[name]} stays at its maximum, {describe(name, after)}"
    return f"{_SHOWN[name]} {describe(name, before)} -> {describe(name, after)}"
