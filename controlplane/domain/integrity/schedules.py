"""Invariants of schedules."""

from collections.abc import Iterator

from controlplane.domain.integrity.invariant import Finding, invariant
from controlplane.domain.integrity.rows import IntegrityRows


@invariant(
    90,
    "The job that an instant of a schedule started has, until its deletion, the guid made of the"
    " name and the instant, in the project of the schedule.",
    upheld_by="commands.schedules.fire",
)
def job_of_its_instant(rows: IntegrityRows) -> Iterator[Finding]:
    for firing in rows.firings:
        if firing.job_project_id is None:
            continue
        found = (firing.job_project_id, firing.job_guid)
        if found != (firing.project_id, firing.guid):
            yield Finding(
                firing,
                f"its job {firing.job_id} is {firing.job_guid} in project {firing.job_project_id},"
                f" expected: {firing.guid} in project {firing.project_id}",
            )


@invariant(
    91,
    "An instant of a schedule is recorded once, and no job was started by two instants.",
    upheld_by="constraint schedule_firing_once; guids of name and instant",
)
def instant_fires_once(rows: IntegrityRows) -> Iterator[Finding]:
    for firing in rows.firings:
        if firing.starts > 1:
            yield Finding(firing, f"job {firing.job_id} was started by {firing.starts} instants")
