"""Lines of the audit log, newest first for readers, oldest first for followers."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q, QuerySet

from controlplane import clock
from controlplane.domain.scopes import split_project_name
from controlplane.models import AuditLine
from controlplane.queries.sql import scalar

# No transaction lasts longer: its connection would be closed. After a restore of the database from
# a dump the numbers of transactions begin anew, and only old lines have larger ones.
_SETTLED_AFTER = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which lines to list; None: all. `project`: `domain/name`, or a name in `default`.

    `project_ids`: the projects that a reader may see; lines without a project are omitted then.
    """

    actor: str | None = None
    action: str | None = None
    subject: str | None = None
    token: str | None = None
    project: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    project_ids: Collection[int] | None = None


def list_audit_lines(wanted: AuditFilter, *, before: int | None, limit: int) -> list[AuditLine]:
    """Return lines, newest first."""
    found = _lines(wanted)
    if before is not None:
        found = found.filter(pk__lt=before)
    return list(found.order_by("-pk")[:limit])


def follow_audit_lines(wanted: AuditFilter, *, after: int | None, limit: int) -> list[AuditLine]:
    """Return the settled lines after a line, oldest first.

    A line is settled when all earlier transactions have ended: no line with a smaller id appears
    later, so a follower that continues after the last id misses none.
    """
    oldest = scalar("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
    settled = Q(xid__lt=oldest) | Q(at__lt=clock.now() - _SETTLED_AFTER)
    found = _lines(wanted).filter(settled, pk__gt=after or 0)
    return list(found.order_by("pk")[:limit])


def _lines(wanted: AuditFilter) -> QuerySet[AuditLine]:
    found = AuditLine.objects.select_related("project__domain", "domain")
    fields = {
        "actor": wanted.actor,
        "action": wanted.action,
        "subject": wanted.subject,
        "token": wanted.token,
        "at__gte": wanted.since,
        "at__lt": wanted.until,
        "project_id__in": wanted.project_ids,
    }
    if wanted.project is not None:
        domain, name = split_project_name(wanted.project)
        fields |= {"project__domain__name": domain, "project__name": name}
    return found.filter(**{name: value for name, value in fields.items() if value is not None})
