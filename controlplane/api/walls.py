"""Check what a caller may do on an object; one that the caller may not read does not exist."""

from collections.abc import Iterable
from contextlib import suppress
from uuid import UUID

from rest_framework.exceptions import PermissionDenied

from controlplane.domain.errors import NotFound
from controlplane.domain.jobs.admission import unknown_project
from controlplane.domain.jobs.submission import JobsRefused
from controlplane.domain.roles import Access, Permission, Place, Role, may
from controlplane.domain.scopes import DEFAULT_NAME, split_project_name
from controlplane.queries.tenancy import access as places
from controlplane.queries.tenancy.projects import list_project_names
from controlplane.spec import Fault, InvalidSpec, JobSpec

NAMED_PROJECTS = 20
"""Projects that a refusal names."""

_REFUSALS = {
    Permission.SUBMIT: "the request needs the role submitter on the project",
    Permission.CHANGE: "only its submitter or a manager of its project may {verb} it",
    Permission.EXEC: (
        "only its submitter or a manager of its project may run programs in the attempt"
    ),
    Permission.MANAGE: "the request needs the role manager on the project",
}


def check_job(
    access: Access,
    job_id: int,
    wanted: Permission = Permission.READ,
    verb: str = "",
    *,
    though_stopping: bool = False,
) -> Role:
    """Return the role of a caller who may do `wanted` on a job.

    Raise NotFound or PermissionDenied.
    """
    place = places.find_job_place(job_id, though_stopping=though_stopping)
    return _check(access, wanted, place, f"job {job_id}", verb)


def check_task(
    access: Access, task_id: int, wanted: Permission = Permission.READ, verb: str = ""
) -> None:
    """Raise NotFound or PermissionDenied unless the caller may do `wanted` on a task."""
    _check(access, wanted, places.find_task_place(task_id), f"task {task_id}", verb)


def check_attempt(access: Access, uid: UUID, wanted: Permission = Permission.READ) -> None:
    """Raise NotFound or PermissionDenied unless the caller may do `wanted` on an attempt."""
    _check(access, wanted, places.find_attempt_place(uid), f"attempt {uid}")


def check_artifacts(access: Access, uid: UUID) -> None:
    """Raise NotFound unless the caller may read an attempt, or a cache entry with its files."""
    try:
        check_attempt(access, uid)
    except NotFound:
        if not any(may(access, Permission.READ, place) for place in places.find_cached_places(uid)):
            raise


def check_callback(access: Access, callback_id: int, wanted: Permission, verb: str) -> None:
    """Raise NotFound or PermissionDenied unless the caller may do `wanted` on a callback."""
    place = places.find_callback_place(callback_id)
    _check(access, wanted, place, f"callback {callback_id}", verb)


def check_project(
    access: Access, domain: str, project: str, wanted: Permission = Permission.READ
) -> Place:
    """Return the place of a project. Raise NotFound or PermissionDenied as `check_job`."""
    place = places.find_project_place(domain, project)
    _check(access, wanted, place, f"project {domain}/{project}")
    return place


def check_named_project(access: Access, name: str, wanted: Permission = Permission.READ) -> Place:
    """Return the place of a project named domain/project, or project of the domain `default`.

    Raise NotFound or PermissionDenied as `check_job`.
    """
    return check_project(access, *split_project_name(name), wanted)


def select_project(access: Access, domain: str | None, project: str | None) -> tuple[str, str]:
    """Return domain and name of the project that the parameters of a request select.

    Each is `default` by default. Without both, a caller that may not read `default/default`
    selects its only project. Raise InvalidSpec if it has none or several.
    """
    if domain or project:
        return domain or DEFAULT_NAME, project or DEFAULT_NAME
    with suppress(NotFound):
        check_project(access, DEFAULT_NAME, DEFAULT_NAME)
        return DEFAULT_NAME, DEFAULT_NAME
    names = [name for _, name in list_project_names(access, limit=NAMED_PROJECTS + 1)]
    if len(names) == 1:
        return split_project_name(names[0])
    if not names:
        raise InvalidSpec([Fault("project", "is missing, and you have no role on a project")])
    more = " and others" if len(names) > NAMED_PROJECTS else ""
    text = f"{', '.join(names[:NAMED_PROJECTS])}{more}"
    fault = Fault("project", f"is missing; select with domain and project one of {text}")
    raise InvalidSpec([fault])


def check_domain(access: Access, name: str, wanted: Permission) -> int:
    """Return the id of a domain. Raise NotFound or PermissionDenied as `check_job`."""
    domain_id = places.find_domain(name)
    role = access.role_on_domain(domain_id)
    if role is None:
        raise NotFound(f"there is no domain {name}")
    if wanted is Permission.MANAGE and not role.includes(Role.MANAGER):
        raise PermissionDenied("the request needs the role manager on the domain")
    return domain_id


def check_new_project(access: Access, domain: str, project: str) -> None:
    """Raise NotFound or PermissionDenied unless the caller may create a project.

    Managers of the domain may, and operators, also in a new domain.
    """
    if access.may_operate:
        return
    try:
        check_domain(access, domain, Permission.MANAGE)
    except NotFound:
        text = "managers of its domain and operators may create it"
        raise NotFound(f"there is no project {domain}/{project}; {text}") from None


def check_change(access: Access, place: Place, verb: str) -> None:
    """Raise PermissionDenied unless the caller may change what is at a known place."""
    if not may(access, Permission.CHANGE, place):
        raise PermissionDenied(_REFUSALS[Permission.CHANGE].format(verb=verb))


def check_submission(access: Access, specs: Iterable[JobSpec]) -> None:
    """Raise PermissionDenied or JobsRefused unless the caller may submit to all the projects.

    A project that the caller may not read is reported as one that does not exist.
    """
    named = [(spec.domain, spec.project) for spec in specs]
    found = places.find_project_places(set(named))
    faults: list[tuple[int, Fault]] = []
    for position, (domain, project) in enumerate(named):
        place = found.get((domain, project))
        if place is None:
            continue  # The admission reports it with the other faults of the job.
        if not may(access, Permission.READ, place):
            faults.append((position, unknown_project(domain, project)))
        elif not may(access, Permission.SUBMIT, place):
            raise PermissionDenied(f"project {domain}/{project}: {_REFUSALS[Permission.SUBMIT]}")
    if faults:
        raise JobsRefused(faults)


def _check(access: Access, wanted: Permission, place: Place, name: str, verb: str = "") -> Role:
    role = access.role_on(place)
    if role is None:
        raise NotFound(f"there is no {name}")
    if not may(access, wanted, place):
        raise PermissionDenied(_REFUSALS[wanted].format(verb=verb))
    return role
