"""Load what the page of usage shows beside the totals: months, and the capacity of pools."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from controlplane.queries.sql import decoded, rows

# Samples are taken every 15 seconds.
_FRESH = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class PoolCapacity:
    """The capacity of a pool's ready cells at its last sample, by resource.

    `requested`: what attempts hold. `wanted`: with what tasks request that wait for more cells.
    """

    pool_id: int
    name: str
    at: datetime
    requested: Mapping[str, int]
    wanted: Mapping[str, int]
    capacity: Mapping[str, int]


def load_pool_capacities(now: datetime) -> list[PoolCapacity]:
    """Return the pools with a sample of the last two minutes, by name."""
    found = rows(
        """
        SELECT p.id, p.name, s.at, s.used, s.wanted, s.capacity
        FROM controlplane_pool p
        JOIN LATERAL (SELECT * FROM controlplane_poolsample s
                      WHERE s.at = (SELECT max(at) FROM controlplane_poolsample WHERE at <= %(now)s)
                        AND s.pool_id = p.id) s ON true
        WHERE s.at > %(since)s ORDER BY p.name
        """,
        {"now": now, "since": now - _FRESH},
    )
    return [
        PoolCapacity(key, name, at, decoded(used), decoded(wanted) or {}, decoded(capacity))
        for key, name, at, used, wanted, capacity in found
    ]


def list_months(limit: int) -> list[date]:
    """Return the newest months with totals, newest first: one index entry each."""
    found = rows(
        """
        WITH RECURSIVE month (at) AS (
            SELECT max(month) FROM controlplane_usagetotal
            UNION ALL
            SELECT (SELECT max(t.month) FROM controlplane_usagetotal t WHERE t.month < month.at)
            FROM month WHERE month.at IS NOT NULL
        )
        SELECT at FROM month WHERE at IS NOT NULL LIMIT %s
        """,
        [limit],
    )
    return [at for (at,) in found]
