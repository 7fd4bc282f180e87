"""Select jobs by their fields."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from controlplane.contract.states import TaskState
from controlplane.queries.history_ranges import find_changed_jobs
from controlplane.queries.search import find_job_ids


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Filters of listed jobs; an empty field does not filter.

    `readable`: ids of the projects whose jobs the caller may read; None: all. `owner`: name of
    the submitter. `ids`: only these jobs. `search`: see `queries.search`. `since`: with a change of
    their own state at or after this time.
    """

    readable: Collection[int] | None = None
    states: Sequence[TaskState] = ()
    pool: str | None = None
    name: str | None = None
    guid: str | None = None
    owner: str | None = None
    ids: Collection[int] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    search: str | None = None
    since: datetime | None = None


def conditions_of(wanted: JobFilter) -> tuple[list[str], list[Any]]:
    """Return conditions on rows `j` of jobs, and their parameters. Raise InvalidSpec."""
    conditions: list[str] = []
    parameters: list[Any] = []
    if wanted.readable is not None:
        conditions.append("j.project_id = ANY(%s)")
        parameters.append(sorted(wanted.readable))
    if wanted.states:
        conditions.append("j.state = ANY(%s)")
        parameters.append([int(state) for state in wanted.states])
    if wanted.pool is not None:
        conditions.append("j.pool_id = (SELECT id FROM controlplane_pool WHERE name = %s)")
        parameters.append(wanted.pool)
    if wanted.name is not None:
        conditions.append("j.name = %s")
        parameters.append(wanted.name)
    if wanted.guid is not None:
        # The first condition is that of the index over all projects.
        conditions.append('lower(j.guid) COLLATE "C" = lower(%s) AND j.guid = %s')
        parameters += [wanted.guid, wanted.guid]
    if wanted.owner is not None:
        conditions.append("j.owner_id = (SELECT id FROM auth_user WHERE username = %s)")
        parameters.append(wanted.owner)
    if wanted.ids is not None:
        conditions.append("j.id = ANY(%s)")
        parameters.append(sorted(wanted.ids))
    if wanted.search is not None:
        conditions.append("j.id = ANY(%s)")
        parameters.append(find_job_ids(wanted.search.strip(), readable=wanted.readable))
    if wanted.since is not None:
        conditions.append("j.id = ANY(%s)")
        parameters.append(find_changed_jobs(wanted.since))
    for key, value in wanted.labels.items():
        conditions.append("j.labels ->> %s = %s")
        parameters += [key, value]
    return conditions, parameters
