"""Holds of jobs and projects: an open hold, and the roles that may replace or release it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controlplane.domain.errors import Conflict, NotPermitted
from controlplane.domain.roles import Role


@dataclass(frozen=True, slots=True)
class OpenHold:
    """A hold that is not released. `role`: of its holder on the project, when it was set.

    `project`: the full name of the held project; empty: the job itself is held.
    """

    by: str
    reason: str
    since: datetime
    role: Role
    project: str = ""

    def as_document(self) -> dict[str, Any]:
        """Return {by, reason, since, role, project}."""
        return {
            "by": self.by,
            "reason": self.reason,
            "since": self.since,
            "role": self.role.value,
            "project": self.project or None,
        }

    def as_audit(self) -> Mapping[str, Any]:
        """Return the fields of audit lines."""
        return {"held_by": self.by, "reason": self.reason, "since": self.since.isoformat()}


def check_hold(present: OpenHold | None, *, subject: str, role: Role, reason: str) -> None:
    """Raise Conflict or NotPermitted unless a caller with `role` may hold `subject`.

    A present hold is replaced, but keeps its beginning.
    """
    if not reason.strip():
        raise Conflict(f"a hold of {subject} needs a reason")
    if present is not None and not role.includes(present.role):
        raise NotPermitted(
            f"{subject} is already held by {present.by}: only the role {present.role} may change"
            " that"
        )


def check_release(present: OpenHold | None, *, subject: str, role: Role) -> OpenHold:
    """Return the present hold of `subject`. Raise Conflict or NotPermitted, as `check_hold`."""
    if present is None:
        raise Conflict(f"{subject} is not held")
    if not role.includes(present.role):
        raise NotPermitted(
            f"{subject} is held by {present.by}: only the role {present.role} may release it"
        )
    return present
