"""Load the totals of usage, added up by project, user, job name or month, ranked by waste."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from types import MappingProxyType
from typing import Any

from controlplane.domain.usage import write_csv
from controlplane.queries.sql import named_rows

UNCOUNTED = "FROM controlplane_job j WHERE j.settled_at IS NOT NULL AND NOT j.is_usage_counted"
"""Settled jobs that the totals lack, a source of work of convergence."""

OTHER_JOBS = "(other jobs)"
"""The job names of a user above the maximum number, which have one total. No job has this name."""

_KEYS = MappingProxyType(
    {
        "month": "to_char(t.month, 'YYYY-MM')",
        "project": "d.name || '/' || p.name",
        "user": "t.owner",
        "job": f"CASE t.job_name WHEN '' THEN '{OTHER_JOBS}' ELSE t.job_name END",
    }
)
KEYS = tuple(_KEYS)
"""What totals can be added up by."""

_RANKS = MappingProxyType(
    {
        "cpu": "wasted_cpu_seconds DESC, requested_cpu_seconds DESC",
        "memory": "wasted_memory_mib_seconds DESC, requested_memory_mib_seconds DESC",
        "gpu": "requested_gpu_seconds DESC",
    }
)
RANKS = tuple(_RANKS)
"""The resources by whose waste rows are ranked; of GPUs, by the request."""


FIELDS = (
    *KEYS,
    "attempts",
    "unmeasured_attempts",
    "requested_cpu_seconds",
    "used_cpu_seconds",
    "wasted_cpu_seconds",
    "requested_memory_mib_seconds",
    "used_memory_mib_seconds",
    "wasted_memory_mib_seconds",
    "memory_peak_mib",
    "requested_gpu_seconds",
)
"""The fields of a row, in the order of a file."""

MAX_CSV_ROWS = 20_000
"""Rows of one file: some 3 MB, and 20 MB in the process."""


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """Which totals, and what they are added up by.

    `since`, `until`: first days of the first and the last month. `readable`: the projects that the
    caller may read; None: all. `job`: the beginning of the job name.
    """

    since: date
    until: date
    by: Sequence[str] = ("project",)
    project_id: int | None = None
    user: str | None = None
    job: str | None = None
    readable: Collection[int] | None = None

    @property
    def file_name(self) -> str:
        """Return the name of the file of these totals, such as usage-2031-05.csv."""
        last = "" if self.until == self.since else f"-to-{self.until:%Y-%m}"
        return f"usage-{self.since:%Y-%m}{last}.csv"


def load_usage_totals(
    wanted: UsageFilter, *, rank: str = "cpu", offset: int = 0, limit: int | None = None
) -> list[Mapping[str, Any]]:
    """Return rows by waste, the largest first; keys that are not in `by` are None.

    Waste is what attempts with a measurement requested and did not use; it is negative if they used
    more. Used memory is the peak of each attempt for its whole time.
    """
    chosen = [name for name in KEYS if name in wanted.by]
    keys = ", ".join(f'{_KEYS[name] if name in chosen else "NULL"} AS "{name}"' for name in KEYS)
    grouped = ", ".join(_KEYS[name] for name in chosen)
    order = ", ".join((_RANKS[rank], *(f'"{name}"' for name in chosen)))
    found = named_rows(
        f"""
        SELECT {keys},
               sum(t.attempts)::bigint AS attempts,
               sum(t.unmeasured_attempts)::bigint AS unmeasured_attempts,
               sum(t.cpu_seconds_requested) AS requested_cpu_seconds,
               sum(t.cpu_seconds_used) AS used_cpu_seconds,
               sum(t.cpu_seconds_measured - t.cpu_seconds_used) AS wasted_cpu_seconds,
               sum(t.memory_mib_seconds_requested) AS requested_memory_mib_seconds,
               sum(t.memory_mib_seconds_used) AS used_memory_mib_seconds,
               sum(t.memory_mib_seconds_measured - t.memory_mib_seconds_used)
                   AS wasted_memory_mib_seconds,
               max(t.memory_peak_mib) AS memory_peak_mib,
               sum(t.gpu_seconds_requested) AS requested_gpu_seconds
        FROM controlplane_usagetotal t
        JOIN controlplane_project p ON p.id = t.project_id
        JOIN controlplane_domain d ON d.id = p.domain_id
        WHERE t.month BETWEEN %(since)s AND %(until)s
          AND (%(readable)s::bigint[] IS NULL OR t.project_id = ANY(%(readable)s))
          AND (%(project)s::bigint IS NULL OR t.project_id = %(project)s)
          AND (%(user)s::text IS NULL OR t.owner = %(user)s)
          AND (%(job)s::text IS NULL OR starts_with(t.job_name, %(job)s))
        {f"GROUP BY {grouped}" if grouped else "HAVING count(*) > 0"}
        ORDER BY {order} LIMIT %(limit)s OFFSET %(offset)s
        """,
        {
            "since": wanted.since,
            "until": wanted.until,
            "readable": None if wanted.readable is None else list(wanted.readable),
            "project": wanted.project_id,
            "user": wanted.user,
            "job": wanted.job,
            "limit": limit,
            "offset": offset,
        },
    )
    return [row._asdict() for row in found]


def write_usage_csv(wanted: UsageFilter, *, rank: str = "cpu") -> str:
    """Return the first rows as CSV: the keys that they are added up by, then the figures."""
    unused = [name for name in KEYS if name not in wanted.by]
    found = load_usage_totals(wanted, rank=rank, limit=MAX_CSV_ROWS)
    columns = [name for name in FIELDS if name not in unused]
    return write_csv(columns, ([row[name] for name in columns] for row in found))
