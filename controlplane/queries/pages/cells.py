"""Load cells with the used, reserved and free part of their resources."""

from dataclasses import dataclass
from datetime import datetime

from controlplane.domain.state.states import CellState
from controlplane.queries.cells.capacity import effective_reservation, load_reserved, load_usage
from controlplane.queries.sql import decoded, named_rows


@dataclass(frozen=True, slots=True)
class Share:
    """A resource of a cell. `reserved`: for waiting tasks, of what is not used yet."""

    name: str
    used: int
    reserved: int
    capacity: int

    @property
    def free(self) -> int:
        """Return what is neither used nor reserved."""
        return max(0, self.capacity - self.used - self.reserved)


@dataclass(frozen=True, slots=True)
class CellUse:
    """A cell with its resources."""

    id: int
    name: str
    pool: str
    state: CellState
    reason: str
    shares: list[Share]


def load_cell_uses(limit: int, *, now: datetime) -> list[CellUse]:
    """Return at most `limit` cells: first those that take no work, then by pool and name."""
    found = named_rows(
        f"""
        SELECT c.id, c.name, p.name AS pool, c.state, c.state_reason, c.capacity
        FROM controlplane_cell c JOIN controlplane_pool p ON p.id = c.pool_id
        ORDER BY c.state = '{CellState.READY}', p.name, c.name LIMIT %s
        """,
        [limit],
    )
    ids = [row.id for row in found]
    used, reserved = load_usage(ids), load_reserved(ids, now=now)
    return [
        CellUse(
            row.id,
            row.name,
            row.pool,
            CellState(row.state),
            row.state_reason,
            _shares(decoded(row.capacity), used.get(row.id, {}), reserved.get(row.id, {})),
        )
        for row in found
    ]


def _shares(
    capacity: dict[str, int], used: dict[str, int], reserved: dict[str, int]
) -> list[Share]:
    return [
        Share(
            name,
            used.get(name, 0),
            effective_reservation(reserved.get(name, 0), used.get(name, 0), amount),
            amount,
        )
        for name, amount in capacity.items()
        if amount
    ]
