"""Load the samples of a cell: used, reserved and whole resources over time."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from controlplane.queries.sql import rows

SAMPLED = ("cpu_millis", "memory_mib", "gpu")
PARTS = ("used", "reserved", "capacity")

_COLUMNS = tuple(f"{name}_{part}" for name in SAMPLED for part in PARTS)
_NOTHING = (None,) * len(_COLUMNS)
_AVERAGES = ", ".join(f"avg({column})::float8" for column in _COLUMNS)


@dataclass(frozen=True, slots=True)
class CellFigures:
    """Averages of a resource of a cell over the time from `at`; None: it has no samples then."""

    at: datetime
    used: float | None = None
    reserved: float | None = None
    capacity: float | None = None

    @property
    def is_sampled(self) -> bool:
        """Return whether there are samples of the time."""
        return self.capacity is not None

    @property
    def free(self) -> float | None:
        """Return what was neither used nor reserved."""
        if self.used is None or self.reserved is None or self.capacity is None:
            return None
        return max(0.0, self.capacity - self.used - self.reserved)


def load_cell_samples(
    cell_id: int, *, until: datetime, each: timedelta, count: int
) -> dict[str, list[CellFigures]]:
    """Return for each resource `count` averages over the time `each`, oldest first.

    The last one ends before `until`.
    """
    last = datetime.fromtimestamp(
        until.timestamp() // each.total_seconds() * each.total_seconds(), until.tzinfo
    )
    first = last - each * count
    found = rows(
        f"""
        SELECT date_bin(%(each)s, at, 'epoch'), {_AVERAGES} FROM controlplane_cellsample
        WHERE cell_id = %(cell)s AND at >= %(first)s AND at < %(last)s GROUP BY 1
        """,
        {"cell": cell_id, "each": each, "first": first, "last": last},
    )
    by_time = {at: values for at, *values in found}
    times = [first + each * number for number in range(count)]
    return {
        name: [
            CellFigures(at, *by_time.get(at, _NOTHING)[3 * place : 3 * place + 3]) for at in times
        ]
        for place, name in enumerate(SAMPLED)
    }
