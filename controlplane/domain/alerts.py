"""The kinds of alerts: what they mean, what to do, their subject, and when they close by age.

docs/troubleshooting.md has the same texts; a test compares them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

_TEN_MINUTES = 600
_A_DAY = 86_400


class SubjectKind(StrEnum):
    """What an alert is about."""

    CELL = "cell"
    POOL = "pool"
    POOL_ID = "pool by id"
    JOB = "job"
    ATTEMPT = "attempt"
    GROUP = "group"
    SHAPE = "shape"
    TICK = "tick"
    IMAGE = "image"
    OTHER = "other"


class Severity(StrEnum):
    """How urgent an alert is; CRITICAL: the work of many jobs stands still or is in danger."""

    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class AlertKind:
    """The meaning of an alert and what to do, in Markdown with links relative to docs.

    `subject`: what its subject names; OTHER: the words of the subject determine that.
    `quiet_seconds`: the time after the last raise until it closes; None: the component that raised
    it closes it.
    """

    meaning: str
    action: str
    subject: SubjectKind = SubjectKind.OTHER
    quiet_seconds: float | None = None
    severity: Severity = Severity.WARNING


ALERTS: Mapping[str, AlertKind] = MappingProxyType(
    {
        "cell_lost": AlertKind(
            "a cell was silent beyond its lease; its tasks run elsewhere",
            "check the machine and its network; the alert closes when the cell registers "
            "again. If the machine is gone for good, close it by hand",
            subject=SubjectKind.CELL,
        ),
        "mass_loss": AlertKind(
            "more than half of a pool became silent at once; no cell is declared lost",
            "if the network failed, wait: the alert closes when the cells return. If "
            'they do not return, use "Confirm the loss" on the list of pools ([mass '
            "loss](operations.md#mass-loss))",
            subject=SubjectKind.POOL,
            severity=Severity.CRITICAL,
        ),
        "cell_twin": AlertKind(
            "another incarnation registers under a cell's name while the first one has a lease",
            "if the cell lost its journal, wait: the new incarnation is accepted when "
            "the first one is lost, soon after its lease. Otherwise two hosts share a "
            "key: find the second process",
            subject=SubjectKind.CELL,
            quiet_seconds=_TEN_MINUTES,
        ),
        "cell_mismatch": AlertKind(
            "a cell reports another pool, other labels below `node/` or more capacity "
            "than its [enrolment](cells.md#the-enrolment) allows; it is CORDONED",
            "correct its settings and restart it, or change its enrolment. If its own "
            "settings are right, another host uses its key: [revoke the "
            "key](cells.md#the-key)",
            subject=SubjectKind.CELL,
        ),
        "registration_failed": AlertKind(
            "the control plane cannot store what a cell reports about itself",
            "check the cell's settings and version",
            subject=SubjectKind.CELL,
            quiet_seconds=_TEN_MINUTES,
        ),
        "rotation_failed": AlertKind(
            "a cell uses its [next key](cells.md#the-key), but the former one cannot end, "
            "because Redis did not accept the change; both stay valid",
            "check Redis and the rights of the control plane there; each message of the "
            "cell tries again",
            subject=SubjectKind.CELL,
            quiet_seconds=_TEN_MINUTES,
        ),
        "cell_flooding": AlertKind(
            "in each of three windows of five seconds, a cell sent more than 500 "
            "messages or 32 MB; or a cell [uses up Redis](cells.md#the-logins-at-redis), "
            "and its logins there are closed; it is "
            "[QUARANTINED](operations.md#a-cell-in-quarantine); other cells keep their leases",
            "check what uses the cell's key; [revoke the key](cells.md#the-key) of a "
            "compromised cell",
            subject=SubjectKind.CELL,
            quiet_seconds=_TEN_MINUTES,
        ),
        "inbox_dropped": AlertKind(
            "a [shard of the inbox](cells.md#the-logins-at-redis) was full, and its "
            "newest messages were dropped unread; the cells send their reports again",
            "after an outage of the inbox this is expected; otherwise a cell floods "
            "Redis: see `cell_flooding`",
            quiet_seconds=_TEN_MINUTES,
        ),
        "inbox_batch_lost": AlertKind(
            "the inbox could not apply batches of messages; the cells send the reports again",
            "during a database outage this is expected; otherwise report it as a bug",
            quiet_seconds=_TEN_MINUTES,
            severity=Severity.CRITICAL,
        ),
        "cells_silent": AlertKind(
            "no cell sent a message for a minute",
            "check the inbox workers, Redis and the cells' logs",
            severity=Severity.CRITICAL,
        ),
        "stop_unconfirmed": AlertKind(
            "a cell did not confirm stops in time; it is QUARANTINED",
            "check its engine. Attempts that it can no longer confirm are released when "
            "the cell is lost (stop it for longer than its lease) or [by "
            "hand](operations.md#release-an-attempt-by-hand)",
            subject=SubjectKind.CELL,
        ),
        "cell_failing": AlertKind(
            "the last ten attempts on a cell failed for system reasons; it is "
            "QUARANTINED for ten minutes",
            "`state_reason` and the messages of its last attempts show the fault of "
            "engine, disk or network",
            subject=SubjectKind.CELL,
        ),
        "image_not_pulled": AlertKind(
            "within ten minutes, at least three cells failed to pull an image for "
            "reasons of the registry, not of the task; tasks of the image wait one to "
            "ten minutes before each next try",
            "check the registry; the alert closes when an attempt with that image runs, "
            "or an hour after the last try",
            subject=SubjectKind.IMAGE,
        ),
        "exclusive_held": AlertKind(
            "an attempt with `exclusive: strict` was running or stopping on a lost cell; "
            "it holds its task and its capacity",
            "bring the cell back, or verify that the container is gone and [release it "
            "by hand](operations.md#release-an-attempt-by-hand)",
        ),
        "repaired": AlertKind(
            "convergence corrected a derived value: a count, a flag, a job's state, a "
            "row whose job is gone",
            "the data are correct again, but the cause is a bug: report it with the text",
            quiet_seconds=_A_DAY,
        ),
        "contradiction": AlertKind(
            "a job is inconsistent in a way that cannot be repaired (it ended in a state "
            "that does not follow from its tasks)",
            "`manage.py check_invariants` lists all violations; the alert closes when "
            "the inconsistency is gone or the job is deleted",
        ),
        "files_not_deleted": AlertKind(
            "files of deleted jobs cannot be deleted; the rows of these jobs remain; "
            "other jobs are deleted",
            "repair the store or its permissions "
            "([retention](retention.md#files-that-cannot-be-deleted))",
            quiet_seconds=_TEN_MINUTES,
        ),
        "store_full": AlertKind(
            "the store has less [free space](store.md#free-space) than "
            "`CELLRUN_STORE_MIN_FREE_MIB`; submissions and uploads are refused",
            "delete jobs, shorten their retention, or enlarge the disk",
            quiet_seconds=_TEN_MINUTES,
            severity=Severity.CRITICAL,
        ),
        "job_skipped": AlertKind(
            "a job's batch failed and was skipped; the other jobs continue",
            "report it as a bug, unless a session keeps the job locked ([in "
            "psql](operations.md#in-psql))",
            quiet_seconds=_TEN_MINUTES,
        ),
        "pool_skipped": AlertKind(
            "placement failed on a pool and skipped it; no task of the pool is placed "
            "and none of its scheduling deadlines passes; other pools continue",
            "check the pool's row",
            subject=SubjectKind.POOL_ID,
            quiet_seconds=_TEN_MINUTES,
            severity=Severity.CRITICAL,
        ),
        "no_room_made": AlertKind(
            "preemption and nominations failed in a pool; tasks that fit are still placed",
            "a row about running work is invalid: the text of the alert has the error",
            quiet_seconds=_TEN_MINUTES,
        ),
        "plugin_failed": AlertKind(
            "a plugin of a pool failed or is no longer installed; the default replaced "
            "it, or its tasks wait, or the missing validator is skipped. Or a hook "
            "failed or was too slow, which ended the job that the text names",
            "repair or remove the plugin ([failures of plugins](plugins.md#failures))",
            quiet_seconds=_TEN_MINUTES,
        ),
        "shape_unreadable": AlertKind(
            "the row of a shape or a group is invalid; its tasks are not placed or not "
            "started; other work continues",
            "cancel the job and submit it again; if a newer version was in use, return to it",
            quiet_seconds=_TEN_MINUTES,
        ),
        "tick_late": AlertKind(
            "a tick has not finished for a minute, or ever: no task is placed "
            "(`placement`), or no callback is sent (`callbacks`); a late convergence is "
            "reported by `/readyz`",
            "check that worker, beat and Redis",
            subject=SubjectKind.TICK,
            quiet_seconds=_TEN_MINUTES,
            severity=Severity.CRITICAL,
        ),
        "control_plane_gap": AlertKind(
            "the control plane was down or cannot receive from its inbox: for one lease "
            "no cell is declared lost and nothing is deleted",
            "nothing after a restart; if it persists, check the inbox workers and Redis",
            subject=SubjectKind.TICK,
            severity=Severity.CRITICAL,
        ),
        "rule_failed": AlertKind(
            "a convergence rule failed as a whole; the other rules continue, and each "
            "tick tries it again",
            "report it as a bug",
            quiet_seconds=_TEN_MINUTES,
            severity=Severity.CRITICAL,
        ),
        "notification_failing": AlertKind(
            "at least three tries to send a [notification](notifications.md) to an address failed",
            "the text has the error: correct the address, or repair the service; the alert "
            "closes with the next message that the address accepts. The alert itself is not sent "
            "to that address",
        ),
        "schedule_refused": AlertKind(
            "the last three jobs of a [schedule](schedules.md) were refused",
            "the text has the cause: correct the document of the job, give the owner the role "
            "back, or pause the schedule; the alert closes when a job of the schedule starts, and "
            "when the schedule is changed, paused or deleted",
        ),
    }
)
"""Every alert, in the order of the documentation."""

QUIET_SECONDS = MappingProxyType(
    {name: kind.quiet_seconds for name, kind in ALERTS.items() if kind.quiet_seconds is not None}
)
"""Seconds after the last raise until an alert closes, by kind: of those that are raised again while
their cause lasts, or about a single event, which is open for a day so that operators notice it."""

_NAMED = re.compile(r"(?:.* )?(cell|pool|job|attempt|group|shape) (\S+)")
_CONVERGENCE = "convergence"


@dataclass(frozen=True, slots=True)
class AlertSubject:
    """The object of an alert. `key`: a name, or the id of a job, attempt, group or shape."""

    kind: SubjectKind
    key: str


def find_subject(kind: str, subject: str) -> AlertSubject:
    """Return what an alert is about: `recount of job 7` of any kind is about job 7."""
    named = ALERTS[kind].subject if kind in ALERTS else SubjectKind.OTHER
    if named is SubjectKind.POOL_ID:
        return AlertSubject(named, subject.removeprefix("pool "))
    if named is not SubjectKind.OTHER:
        return AlertSubject(named, subject)
    if subject.startswith("rule "):
        return AlertSubject(SubjectKind.TICK, _CONVERGENCE)
    found = _NAMED.fullmatch(subject)
    if found is None:
        return AlertSubject(SubjectKind.OTHER, subject)
    return AlertSubject(SubjectKind(found[1]), found[2])
