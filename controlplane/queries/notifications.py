"""Load addresses, rules and messages of notifications, and unsent events at a bounded cost."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from controlplane.contract.states import TaskState
from controlplane.domain.cells.sealing import NotOpened, unseal
from controlplane.domain.errors import NotFound
from controlplane.domain.notifications.matching import EndedJob, EndedJobFilter
from controlplane.domain.notifications.messages import MAX_LINES
from controlplane.domain.notifications.windows import Pending, QuietHours, Timing
from controlplane.domain.state.states import CallbackState
from controlplane.models import NotificationAddress, NotificationMessage, NotificationRule
from controlplane.queries.sql import decoded, named_rows, rows
from controlplane.queries.tenancy.secrets import SealedOtherwise, rest_keys


@dataclass(frozen=True, slots=True)
class UnsentEvents:
    """The unsent events of a rule, the oldest first, and the lines of the first ones."""

    ids: Sequence[int]
    lines: Sequence[str] = field(repr=False)


def about_address(name: str) -> str:
    """Return the context to which the sealed URL of an address is bound."""
    return f"notification address {name}"


def open_url(name: str, sealed: bytes) -> str:
    """Return the URL of an address. Raise SealedOtherwise."""
    for key in rest_keys():
        try:
            return unseal(key, sealed, about=about_address(name)).decode()
        except NotOpened:
            continue
    raise SealedOtherwise(f"of the notification address {name}")


def list_addresses(*, after: str | None, limit: int) -> list[NotificationAddress]:
    """Return addresses by name, without their URLs."""
    found = NotificationAddress.objects.defer("sealed").filter(name__gt=after or "")
    return list(found.order_by("name")[:limit])


def get_address(name: str) -> NotificationAddress:
    """Return an address without its URL. Raise NotFound."""
    found = NotificationAddress.objects.defer("sealed").filter(name=name).first()
    if found is None:
        raise NotFound(f"there is no notification address {name}")
    return found


def list_rules(*, after: str | None, limit: int) -> list[NotificationRule]:
    """Return rules by name."""
    found = NotificationRule.objects.select_related("address").defer("address__sealed")
    return list(found.filter(name__gt=after or "").order_by("name")[:limit])


def get_rule(name: str) -> NotificationRule:
    """Return a rule. Raise NotFound."""
    found = NotificationRule.objects.select_related("address").defer("address__sealed")
    rule = found.filter(name=name).first()
    if rule is None:
        raise NotFound(f"there is no notification rule {name}")
    return rule


def list_messages(name: str, *, before: int | None, limit: int) -> list[NotificationMessage]:
    """Return messages to an address, newest first. Raise NotFound."""
    found = NotificationMessage.objects.filter(address=get_address(name)).select_related("rule")
    if before is not None:
        found = found.filter(pk__lt=before)
    return list(found.order_by("-pk")[:limit])


def timing_of(rule: NotificationRule) -> Timing:
    """Return when a rule sends."""
    quiet = None
    if rule.quiet_begin is not None and rule.quiet_end is not None:
        days = frozenset(rule.quiet_weekdays or range(7))
        quiet = QuietHours(rule.quiet_zone, rule.quiet_begin, rule.quiet_end, days)
    return Timing(
        timedelta(seconds=rule.group_wait_seconds),
        timedelta(seconds=rule.group_interval_seconds),
        quiet,
        rule.critical_passes,
    )


def filter_of(rule: NotificationRule) -> EndedJobFilter:
    """Return the ended jobs that a rule selects."""
    states = frozenset(TaskState(number) for number in rule.states)
    return EndedJobFilter(frozenset(rule.projects), states, rule.name_pattern, rule.label)


def load_pending(rule_id: int) -> Pending:
    """Return when the first unsent event of a rule happened, and the first critical one."""
    found = rows(
        """
        SELECT (SELECT min(at) FROM controlplane_notificationevent
                WHERE rule_id = %(rule)s AND sent_at IS NULL),
               (SELECT min(at) FROM controlplane_notificationevent
                WHERE rule_id = %(rule)s AND sent_at IS NULL AND is_critical)
        """,
        {"rule": rule_id},
    )
    return Pending(*found[0])


def load_unsent(rule_id: int, *, only_critical: bool) -> UnsentEvents:
    """Return all unsent events of a rule, and the lines of the first ones."""
    found = rows(
        """
        SELECT id, line FROM controlplane_notificationevent
        WHERE rule_id = %s AND sent_at IS NULL AND (is_critical OR NOT %s) ORDER BY at, id
        """,
        [rule_id, only_critical],
    )
    return UnsentEvents([number for number, _ in found], [line for _, line in found[:MAX_LINES]])


def has_open_message(rule_id: int) -> bool:
    """Return whether a message of a rule is not sent yet."""
    open_states = (CallbackState.WAITING, CallbackState.CLAIMED)
    return NotificationMessage.objects.filter(rule_id=rule_id, state__in=open_states).exists()


def is_any_due(now: datetime) -> bool:
    """Return whether the tick has work: a rule, or a message such as that of a test."""
    rules = NotificationRule.objects.filter(is_enabled=True)
    messages = NotificationMessage.objects.filter(ended_at=None, due_at__lte=now)
    return rules.values("pk").union(messages.values("pk"), all=True).exists()


def load_ended_jobs(job_ids: Sequence[int]) -> list[EndedJob]:
    """Return the facts of ended jobs, without deleted ones."""
    found = named_rows(
        """
        SELECT j.id, j.name, j.state, j.labels, j.failure_reason,
               d.name || '/' || p.name AS project
        FROM controlplane_job j JOIN controlplane_project p ON p.id = j.project_id
        JOIN controlplane_domain d ON d.id = p.domain_id
        WHERE j.id = ANY(%s) ORDER BY j.id
        """,
        [list(job_ids)],
    )
    return [
        EndedJob(
            row.id,
            row.project,
            row.name,
            TaskState(row.state),
            decoded(row.labels) or {},
            row.failure_reason,
        )
        for row in found
    ]


def describe_rule(rule: NotificationRule) -> dict[str, Any]:
    """Return the fields of a rule as its request has them."""
    quiet = None
    if rule.quiet_begin is not None and rule.quiet_end is not None:
        quiet = {
            "time_zone": rule.quiet_zone,
            "begin": rule.quiet_begin.strftime("%H:%M"),
            "end": rule.quiet_end.strftime("%H:%M"),
            "weekdays": rule.quiet_weekdays,
        }
    return {
        "name": rule.name,
        "address": rule.address.name,
        "enabled": rule.is_enabled,
        "about": rule.about,
        "kinds": rule.kinds,
        "only_critical": rule.only_critical,
        "projects": rule.projects,
        "states": [TaskState(number).name for number in rule.states],
        "name_pattern": rule.name_pattern,
        "label": rule.label,
        "group_wait_seconds": rule.group_wait_seconds,
        "group_interval_seconds": rule.group_interval_seconds,
        "quiet_hours": quiet,
        "critical_passes": rule.critical_passes,
    }
