"""Collect the events that rules select, and compose one message for each window of a rule."""

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from controlplane.commands.state.transactions import run_in_transaction
from controlplane.domain.alerts import ALERTS, Severity
from controlplane.domain.notifications.matching import FAILING, EndedJob, select_kinds
from controlplane.domain.notifications.messages import (
    GIVE_UP_AFTER,
    MAX_LINE,
    MAX_STORED,
    compose,
    line_of_job,
)
from controlplane.domain.notifications.windows import Window, due_window
from controlplane.domain.state.states import NotifyAbout
from controlplane.models import NotificationEvent, NotificationMessage, NotificationRule
from controlplane.queries.notifications import (
    filter_of,
    has_open_message,
    load_ended_jobs,
    load_pending,
    load_unsent,
    timing_of,
)
from controlplane.queries.sql import execute, rows
from controlplane.queries.ticks import try_lock

_LOCK = zlib.crc32(b"cellrun notifications")

# Ended jobs, and alerts of one rule, that one run reads.
_PAGE = 1_000
# An alert is reported if it was raised, or closed, within this time: an outage of the tick that is
# longer loses events. Events of alerts are kept for longer, so that each is reported once.
_RECENT = timedelta(days=7)
_KEPT = timedelta(days=14)

_RAISED = """
INSERT INTO controlplane_notificationevent
    (rule_id, alert_id, is_resolved, is_critical, at, line)
SELECT %(rule)s, a.id, false, a.kind = ANY(%(critical)s), a.raised_at,
       left('raised: ' || a.kind || ' ' || a.subject || ': ' || a.text, %(length)s)
FROM controlplane_alert a
WHERE a.raised_at >= %(since)s AND a.kind = ANY(%(kinds)s)
  AND NOT (a.kind = %(failing)s AND a.subject = %(address)s)
  AND NOT EXISTS (SELECT 1 FROM controlplane_notificationevent e
                  WHERE e.rule_id = %(rule)s AND e.alert_id = a.id AND NOT e.is_resolved)
ORDER BY a.raised_at, a.id LIMIT %(page)s
ON CONFLICT DO NOTHING
"""
_RESOLVED = """
INSERT INTO controlplane_notificationevent
    (rule_id, alert_id, is_resolved, is_critical, at, line)
SELECT %(rule)s, a.id, true, a.kind = ANY(%(critical)s), a.cleared_at,
       left('resolved: ' || a.kind || ' ' || a.subject || ': ' || a.text, %(length)s)
FROM controlplane_alert a
WHERE a.cleared_at >= %(recent)s
  AND EXISTS (SELECT 1 FROM controlplane_notificationevent e
              WHERE e.rule_id = %(rule)s AND e.alert_id = a.id AND NOT e.is_resolved)
  AND NOT EXISTS (SELECT 1 FROM controlplane_notificationevent e
                  WHERE e.rule_id = %(rule)s AND e.alert_id = a.id AND e.is_resolved)
ORDER BY a.cleared_at, a.id LIMIT %(page)s
ON CONFLICT DO NOTHING
"""
_FORGET = """
DELETE FROM controlplane_notificationevent WHERE id IN (
    SELECT e.id FROM controlplane_notificationevent e
    WHERE e.sent_at < %s AND NOT EXISTS (
        SELECT 1 FROM controlplane_alert a WHERE a.id = e.alert_id AND a.cleared_at IS NULL)
    ORDER BY e.sent_at LIMIT %s)
"""
_TAKE_ENDS = """
DELETE FROM controlplane_jobend WHERE id IN (
    SELECT id FROM controlplane_jobend ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED)
RETURNING job_id, at
"""


def collect_events(*, now: datetime) -> bool:
    """Store the events that rules select since the last run; return whether more jobs have ended.

    An event is stored in one transaction with the note that it was read: none is lost or doubled.
    """
    return run_in_transaction(lambda: _collect(now))


def _collect(now: datetime) -> bool:
    if not try_lock(_LOCK):
        return False
    rules = _lock_rules()
    for rule in rules:
        if rule.about == NotifyAbout.ALERTS:
            _collect_alerts(rule, now)
    execute(_FORGET, [now - _KEPT, _PAGE])
    ended = dict(rows(_TAKE_ENDS, [_PAGE]))
    if ended:
        jobs = load_ended_jobs(list(ended))
        for rule in rules:
            if rule.about == NotifyAbout.JOBS:
                recent = [job for job in jobs if ended[job.job_id] >= rule.since]
                _collect_jobs(rule, recent, ended)
    return len(ended) == _PAGE


def _lock_rules() -> list[NotificationRule]:
    """Return the enabled rules; they cannot be deleted until the end of the transaction."""
    locked = NotificationRule.objects.select_for_update(of=("self",), no_key=True)
    found = locked.select_related("address").defer("address__sealed")
    return list(found.filter(is_enabled=True).order_by("pk"))


def _collect_alerts(rule: NotificationRule, now: datetime) -> None:
    parameters = {
        "rule": rule.pk,
        "kinds": select_kinds(rule.kinds, only_critical=rule.only_critical),
        "critical": [name for name, kind in ALERTS.items() if kind.severity is Severity.CRITICAL],
        "failing": FAILING,
        "address": rule.address.name,
        "since": max(rule.since, now - _RECENT),
        "recent": now - _RECENT,
        "length": MAX_LINE,
        "page": _PAGE,
    }
    execute(_RAISED, parameters)
    execute(_RESOLVED, parameters)


def _collect_jobs(
    rule: NotificationRule, jobs: Sequence[EndedJob], ended: Mapping[int, datetime]
) -> None:
    wanted = filter_of(rule)
    found = [job for job in jobs if wanted.selects(job)]
    stored = NotificationEvent.objects.filter(rule=rule, sent_at=None).count() if found else 0
    room = max(MAX_STORED - stored, 0)
    NotificationEvent.objects.bulk_create(
        NotificationEvent(rule=rule, job_id=job.job_id, at=ended[job.job_id], line=line_of_job(job))
        for job in found[:room]
    )
    if len(found) > room:
        rule.uncounted += len(found) - room
        rule.save(update_fields=["uncounted"])


def compose_windows(*, now: datetime) -> Counter[str]:
    """Compose the messages of all rules whose windows are due; return how many, by `composed`.

    A rule has at most one message that is not sent: what happens meanwhile is in the next one.
    """
    found: Counter[str] = Counter()
    for rule_id in NotificationRule.objects.filter(is_enabled=True).values_list("pk", flat=True):

        def compose_one(rule_id: int = rule_id) -> bool:
            return _compose(rule_id, now)

        found["composed"] += run_in_transaction(compose_one)
    return found


def _compose(rule_id: int, now: datetime) -> bool:
    locked = NotificationRule.objects.select_for_update(no_key=True, skip_locked=True)
    rule = locked.filter(pk=rule_id, is_enabled=True).first()
    if rule is None or has_open_message(rule_id):
        return False
    window = due_window(load_pending(rule_id), rule.last_at, timing_of(rule), now=now)
    if window is None:
        return False
    is_all = window is Window.ALL
    unsent = load_unsent(rule_id, only_critical=not is_all)
    total = len(unsent.ids) + (rule.uncounted if is_all else 0)
    message = compose(rule.name, unsent.lines, total=total)
    NotificationMessage.objects.create(
        address_id=rule.address_id,
        rule=rule,
        title=message.title,
        body=message.body,
        due_at=now,
        give_up_at=now + GIVE_UP_AFTER,
        created_at=now,
    )
    reported = NotificationEvent.objects.filter(pk__in=unsent.ids)
    reported.filter(alert_id=None).delete()
    reported.update(sent_at=now)
    rule.last_at = now
    rule.uncounted = 0 if is_all else rule.uncounted
    rule.save(update_fields=["last_at", "uncounted"])
    return True
