"""Raise and clear the alert of schedules whose jobs are refused in succession."""

from collections.abc import Iterable
from datetime import datetime

from controlplane.commands.state.apply import apply
from controlplane.domain.schedules.refusals import (
    REFUSED_ALERT,
    REFUSED_IN_SUCCESSION,
    judge_refusals,
)
from controlplane.domain.state.effects import ClearAlert, Effects, RaiseAlert
from controlplane.models import Schedule
from controlplane.queries.schedules import load_latest


def report_refusals(decided: Iterable[Schedule], *, now: datetime) -> None:
    """Raise or clear the alerts of schedules with new instants that started or were refused."""
    schedules = {schedule.pk: schedule for schedule in decided}
    if not schedules:
        return
    latest = load_latest(schedules, REFUSED_IN_SUCCESSION)
    changes = [judge_refusals(_subject(schedules[key]), found) for key, found in latest.items()]
    raised = [change for change in changes if isinstance(change, RaiseAlert)]
    cleared = [change for change in changes if isinstance(change, ClearAlert)]
    if raised or cleared:
        apply(Effects(alerts=raised, cleared=cleared), now=now)


def clear_refusals(schedule: Schedule, *, now: datetime) -> None:
    """Clear the alert of a schedule that its users change, so that its next jobs decide anew."""
    apply(Effects(cleared=[ClearAlert(REFUSED_ALERT, _subject(schedule))]), now=now)


def _subject(schedule: Schedule) -> str:
    return f"schedule {schedule.name} in {schedule.project}"
