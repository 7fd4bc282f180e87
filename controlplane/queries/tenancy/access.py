"""Load the roles of a caller, and the places of objects, which `domain.roles.may` compares."""

from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User

from controlplane.domain.errors import NotFound
from controlplane.domain.roles import AUDITOR, Access, Place, Role
from controlplane.queries.sql import first_row, named_rows, rows
from controlplane.queries.tenancy.accounts import Credential

# Roles of the user and of its groups, with those on each project that follow from its domain.
_ROLES = """
WITH held AS MATERIALIZED (
    SELECT domain_id, project_id, role FROM controlplane_membership
    WHERE user_id = %(user)s OR group_id IN (
        SELECT group_id FROM auth_user_groups WHERE user_id = %(user)s)
)
SELECT domain_id, project_id, role FROM held
UNION
SELECT NULL, p.id, h.role FROM held h JOIN controlplane_project p ON p.domain_id = h.domain_id
"""


def load_access(credential: Credential) -> Access:
    """Return the roles of the caller."""
    bound_to = None if credential.bound_to is None else frozenset(credential.bound_to)
    user = credential.user
    if user.is_superuser:
        return Access(user.pk, credential.role, is_operator=True, bound_to=bound_to)
    found = rows(_ROLES, {"user": user.pk}, prepare=True)
    return Access(
        user.pk,
        credential.role,
        is_auditor=any(role == AUDITOR for _, _, role in found),
        has_open_reading=settings.CELLRUN.open_reading,
        projects=_highest((project, role) for _, project, role in found),
        domains=_highest((domain, role) for domain, _, role in found),
        bound_to=bound_to,
    )


def load_admin_access(user: User) -> Access | None:
    """Return the roles of a user in the admin, on all projects; None: the user may not act.

    Users that are no operators, but have Django's permission to change jobs, act as managers.
    """
    if not user.has_perm("controlplane.change_job"):
        return None
    limit = Role.OPERATOR if user.is_superuser else Role.MANAGER
    return Access(user.pk, limit, is_operator=True)


def _highest(found: Any) -> dict[int, Role]:
    """Return the highest role of each id; None is no id."""
    highest: dict[int, Role] = {}
    for key, name in found:
        if key is not None and (key not in highest or Role(name).includes(highest[key])):
            highest[key] = Role(name)
    return highest


def is_auditor(user: User) -> bool:
    """Return whether the user, or one of its groups, audits the installation."""
    return any(role == AUDITOR for _, _, role in rows(_ROLES, {"user": user.pk}))


def find_project_place(domain: str, project: str) -> Place:
    """Return the place of a project. Raise NotFound."""
    row = first_row(
        """
        SELECT p.id, p.domain_id FROM controlplane_project p
        JOIN controlplane_domain d ON d.id = p.domain_id WHERE d.name = %s AND p.name = %s
        """,
        [domain, project],
    )
    if row is None:
        raise NotFound(f"there is no project {domain}/{project}")
    return Place(row.id, row.domain_id)


def find_domain(name: str) -> int:
    """Return the id of a domain. Raise NotFound."""
    row = first_row("SELECT id FROM controlplane_domain WHERE name = %s", [name])
    if row is None:
        raise NotFound(f"there is no domain {name}")
    return int(row.id)


def find_project_places(
    names: Collection[tuple[str, str]],
) -> Mapping[tuple[str, str], Place]:
    """Return the places of the existing projects among `names`, each (domain, project)."""
    found = rows(
        """
        SELECT d.name, p.name, p.id, p.domain_id FROM controlplane_project p
        JOIN controlplane_domain d ON d.id = p.domain_id
        WHERE (d.name, p.name) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
        """,
        [[domain for domain, _ in names], [project for _, project in names]],
        prepare=True,
    )
    return {(domain, project): Place(key, domain_id) for domain, project, key, domain_id in found}


def find_job_place(job_id: int, *, though_stopping: bool = False) -> Place:
    """Return the place of a job. Raise NotFound.

    `though_stopping`: also of a deleted job with an unreleased attempt.
    """
    place = _find_place(
        """
        j.id = %s AND (j.deleted_at IS NULL OR %s AND EXISTS (
            SELECT FROM controlplane_attempt a WHERE a.job_id = j.id AND a.released_at IS NULL))
        """,
        [job_id, though_stopping],
    )
    if place is None:
        raise NotFound(f"there is no job {job_id}")
    return place


def find_task_place(task_id: int) -> Place:
    """Return the place of a task. Raise NotFound."""
    place = _find_place(
        "j.deleted_at IS NULL AND j.id = (SELECT job_id FROM controlplane_task WHERE id = %s)",
        [task_id],
    )
    if place is None:
        raise NotFound(f"there is no task {task_id}")
    return place


def find_attempt_place(uid: UUID, *, though_deleted: bool = False) -> Place:
    """Return the place of an attempt, with `though_deleted` also of a deleted job.

    Raise NotFound.
    """
    place = _find_place(
        """
        (j.deleted_at IS NULL OR %s)
        AND j.id = (SELECT job_id FROM controlplane_attempt WHERE uid = %s)
        """,
        [though_deleted, uid],
    )
    if place is None:
        raise NotFound(f"there is no attempt {uid}")
    return place


def find_cached_places(uid: UUID) -> list[Place]:
    """Return the places whose readers may read the files of an attempt by a cache entry.

    They are the project of the entry, or each project of its domain if the entry is shared.
    """
    found = rows(
        """
        SELECT DISTINCT p.id, p.domain_id FROM controlplane_cacheentry e
        JOIN controlplane_project p
          ON p.id = e.project_id OR (e.is_shared AND p.domain_id = e.domain_id)
        WHERE e.attempt_uid = %s AND e.evicted_at IS NULL
        """,
        [uid],
    )
    return [Place(project_id, domain_id) for project_id, domain_id in found]


def find_callback_place(callback_id: int) -> Place:
    """Return the place of a callback. Raise NotFound."""
    place = _find_place(
        """
        j.deleted_at IS NULL
        AND j.id = (SELECT job_id FROM controlplane_callback WHERE id = %s)
        """,
        [callback_id],
    )
    if place is None:
        raise NotFound(f"there is no callback {callback_id}")
    return place


def find_projects_of_jobs(job_ids: Collection[int]) -> dict[int, int]:
    """Return the project of each existing job among `job_ids`, also of deleted ones."""
    found = rows(
        "SELECT id, project_id FROM controlplane_job WHERE id = ANY(%s)", [sorted(job_ids)]
    )
    return dict(found)


def _find_place(condition: str, parameters: list[Any]) -> Place | None:
    found = named_rows(
        f"""
        SELECT j.project_id, p.domain_id, j.owner_id FROM controlplane_job j
        JOIN controlplane_project p ON p.id = j.project_id WHERE {condition}
        """,
        parameters,
    )
    return Place(*found[0]) if found else None
