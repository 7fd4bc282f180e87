"""Load jobs that depend on other jobs: dependants, children, gangs to requeue."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.domain.state.states import ACTIVE
from controlplane.queries.sql import rows

_ACTIVE = tuple(sorted(int(state) for state in ACTIVE))


@dataclass(frozen=True, slots=True)
class DependencyFacts:
    """A dependency of a job; open if it is neither met nor failed."""

    on_job_id: int
    name: str
    until: str
    is_met: bool
    is_failed: bool


def load_dependencies(job_ids: Sequence[int]) -> dict[int, list[DependencyFacts]]:
    """Return the dependencies of each job."""
    found = rows(
        """
        SELECT job_id, on_job_id, on_name, until, met_at IS NOT NULL, failed_at IS NOT NULL
        FROM controlplane_jobdependency WHERE job_id = ANY(%s) ORDER BY job_id, id
        """,
        [list(job_ids)],
        prepare=True,
    )
    dependencies: dict[int, list[DependencyFacts]] = defaultdict(list)
    for job_id, *facts in found:
        dependencies[job_id].append(DependencyFacts(*facts))
    return dict(dependencies)


def load_parents(job_ids: Sequence[int]) -> dict[int, tuple[int, str]]:
    """Return the id and name of the parent, by child."""
    found = rows(
        """
        SELECT c.id, p.id, p.name FROM controlplane_job c
        JOIN controlplane_job p ON p.id = c.parent_id WHERE c.id = ANY(%s) ORDER BY c.id
        """,
        [list(job_ids)],
    )
    return {child: (parent, name) for child, parent, name in found}


def find_requeuing_page(job_id: int, limit: int) -> list[int]:
    """Return the placed members of the gang that may be requeued, lowest ids first."""
    found = rows(
        """
        SELECT t.id FROM controlplane_task t
        JOIN controlplane_taskgroup g ON g.id = t.group_id AND NOT g.at_most_once
        JOIN controlplane_job j ON j.id = t.job_id AND j.is_requeuing
        WHERE t.job_id = %s AND t.state = ANY(%s) ORDER BY t.id LIMIT %s
        """,
        [job_id, list(_ACTIVE), limit],
    )
    return [task_id for (task_id,) in found]


def load_stop_seconds(job_id: int) -> dict[int, float]:
    """Return by group the grace period of its tasks' stops in seconds."""
    found = rows(
        """
        SELECT id, COALESCE((launch->>'stop_grace_seconds')::float8, 10)
        FROM controlplane_taskgroup WHERE job_id = %s
        """,
        [job_id],
    )
    return dict(found)
