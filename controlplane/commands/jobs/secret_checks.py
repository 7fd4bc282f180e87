"""Refuses jobs that name secrets which their project does not have: they could only fail."""

from collections.abc import Iterator, Sequence

from controlplane.commands.jobs.admission import AdmissionRequest
from controlplane.domain.jobs.submission import JobsRefused
from controlplane.queries.tenancy.secrets import find_missing
from controlplane.spec import Fault, JobSpec
from controlplane.spec.faults import Place
from controlplane.spec.parsing import field_path


def check_secrets(jobs: Sequence[AdmissionRequest]) -> None:
    """Whether all secrets are there that the jobs name; asks nothing for jobs that name none.

    `allow_unsatisfiable` takes a job all the same: its secrets may come before its tasks start.
    Raises JobsRefused.
    """
    named = [
        (job, place, name)
        for job in jobs
        if not job.spec.allow_unsatisfiable
        for place, name in _named_in(job.spec)
    ]
    missing = find_missing((job.project_id, name) for job, _, name in named)
    faults = [
        (job.position, _fault(job.spec, place, name, is_short=job.is_short))
        for job, place, name in named
        if (job.project_id, name) in missing
    ]
    if faults:
        raise JobsRefused(faults)


def _named_in(spec: JobSpec) -> Iterator[tuple[Place, str]]:
    for number, group in enumerate(spec.groups):
        for position, secret in enumerate(group.secrets):
            yield ("groups", number, "secrets", position, "name"), secret.name
        if group.registry_secret is not None:
            yield ("groups", number, "registry_secret"), group.registry_secret


def _fault(spec: JobSpec, place: Place, name: str, *, is_short: bool) -> Fault:
    project = f"{spec.domain}/{spec.project}"
    text = f"the project {project} has no secret {name}: write it first"
    return Fault(field_path(place, is_short=is_short), text)
