"""The audit log: one function writes its lines, in the transaction of the change they describe.

The origin of a request (user, token, address) is bound once, by the middleware of web or by a
management command, so that no command can forget to pass it on: docs/decisions/0051.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any

import structlog
from django.db import models, transaction

from controlplane import clock
from controlplane.contract.codec import clean_text
from controlplane.queries.sql import encoded, rows

log = structlog.get_logger("cellrun.audit")


class Action(StrEnum):
    """What a line reports: verb and noun. Names are stable, because readers filter by them."""

    SUBMIT_JOB = "submit.job"
    CANCEL_JOB = "cancel.job"
    RETRY_JOB = "retry.job"
    DELETE_JOB = "delete.job"
    HOLD_JOB = "hold.job"
    RELEASE_JOB = "release.job"
    MOVE_JOB = "move.job"
    START_BULK_OPERATION = "start.bulk_operation"
    STOP_BULK_OPERATION = "stop.bulk_operation"
    CREATE_SCHEDULE = "create.schedule"
    CHANGE_SCHEDULE = "change.schedule"
    DELETE_SCHEDULE = "delete.schedule"
    RUN_SCHEDULE = "run.schedule"
    SUBMIT_TASK = "submit.task"
    CANCEL_TASK = "cancel.task"
    CLAIM_TASK = "claim.task"
    DELETE_TASK = "delete.task"
    RELEASE_ATTEMPT = "release.attempt"
    EXEC_ATTEMPT = "exec.attempt"
    END_EXEC_SESSION = "end.exec_session"
    REPEAT_CALLBACK = "repeat.callback"
    CREATE_NOTIFICATION_ADDRESS = "create.notification_address"
    CHANGE_NOTIFICATION_ADDRESS = "change.notification_address"
    DELETE_NOTIFICATION_ADDRESS = "delete.notification_address"
    TEST_NOTIFICATION_ADDRESS = "test.notification_address"
    CREATE_NOTIFICATION_RULE = "create.notification_rule"
    CHANGE_NOTIFICATION_RULE = "change.notification_rule"
    DELETE_NOTIFICATION_RULE = "delete.notification_rule"
    EVICT_CACHE_ENTRY = "evict.cache_entry"
    CREATE_SECRET = "create.secret"
    CHANGE_SECRET = "change.secret"
    DELETE_SECRET = "delete.secret"
    USE_SECRET = "use.secret"
    RESEAL_SECRET = "reseal.secret"
    CREATE_TOKEN = "create.token"
    REVOKE_TOKEN = "revoke.token"
    REFUSE_TOKEN = "refuse.token"
    CREATE_USER = "create.user"
    CHANGE_USER = "change.user"
    DELETE_USER = "delete.user"
    LOG_IN_USER = "log_in.user"
    REFUSE_LOGIN = "refuse.login"
    LINK_IDENTITY = "link.identity"
    UNLINK_IDENTITY = "unlink.identity"
    SET_UP_SECOND_FACTOR = "set_up.second_factor"
    RESET_SECOND_FACTOR = "reset.second_factor"
    CREATE_GROUP = "create.group"
    DELETE_GROUP = "delete.group"
    GRANT_ROLE = "grant.role"
    REMOVE_ROLE = "remove.role"
    CREATE_DOMAIN = "create.domain"
    CREATE_PROJECT = "create.project"
    CHANGE_PROJECT = "change.project"
    HOLD_PROJECT = "hold.project"
    RELEASE_PROJECT = "release.project"
    CREATE_SERVICE_ACCOUNT = "create.service_account"
    DELETE_SERVICE_ACCOUNT = "delete.service_account"
    CREATE_POOL = "create.pool"
    CHANGE_POOL = "change.pool"
    CONFIRM_LOSS = "confirm.loss"
    CREATE_QUOTA = "create.quota"
    CHANGE_QUOTA = "change.quota"
    DELETE_QUOTA = "delete.quota"
    ENROLL_CELL = "enroll.cell"
    SHOW_CELL_KEY = "show.cell_key"
    RENEW_CELL_KEY = "renew.cell_key"
    ROTATE_CELL_KEY = "rotate.cell_key"
    REPLACE_CELL_KEY = "replace.cell_key"
    DISCARD_CELL_KEY = "discard.cell_key"
    REVOKE_CELL_KEY = "revoke.cell_key"
    CHANGE_CELL = "change.cell"
    CORDON_CELL = "cordon.cell"
    UNCORDON_CELL = "uncordon.cell"
    DRAIN_CELL = "drain.cell"
    UNQUARANTINE_CELL = "unquarantine.cell"
    CLOSE_ALERT = "close.alert"
    REPAIR_JOB = "repair.job"
    REPAIR_PROJECT = "repair.project"


class Via(StrEnum):
    """How an actor reached the control plane."""

    TOKEN = "token"
    SESSION = "session"
    COMMAND = "command"
    CELL = "cell"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of a request. `token`: its name; `address`: empty if it is unknown."""

    actor: str = "system"
    via: Via = Via.SYSTEM
    token: str = ""
    address: str = ""
    request_id: str = ""


# The function, not its result: a view authenticates the caller after the middleware has begun.
_find_origin: ContextVar[Callable[[], Origin]] = ContextVar("find_origin", default=Origin)


@contextmanager
def bind_origin(find: Callable[[], Origin]) -> Iterator[None]:
    """Give the lines that are written in this context the origin that `find` returns then."""
    bound = _find_origin.set(find)
    try:
        yield
    finally:
        _find_origin.reset(bound)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An action, for one line of the log. `text`: a reason or a description.

    A line belongs to the project `project_id`, or to that of the job `job_id`; one about a domain,
    to that domain. `before` and `after` have changed fields only, and never the value of a secret
    or token.
    """

    action: Action
    subject: str
    text: str = ""
    job_id: int | None = None
    project_id: int | None = None
    domain_id: int | None = None
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None


def record(
    *entries: AuditEntry,
    now: datetime | None = None,
    actor: str | None = None,
    via: Via | None = None,
) -> None:
    """Write one line for each entry, with one statement, and log them after the commit.

    The caller's transaction contains the change, so that neither is committed without the other.
    `actor` and `via` replace those of the bound origin.
    """
    if not entries:
        return
    origin, at = _find_origin.get()(), now or clock.now()
    common = {
        "actor": clean_text(actor or origin.actor, 150),
        "via": str(via or origin.via),
        "token": origin.token,
        "address": origin.address,
        "request_id": origin.request_id,
    }
    found = rows(_INSERT, {"at": at, **common, **_columns(entries)}, prepare=True)
    lines = [
        {"id": line_id, "at": at.isoformat(), **common, "project": project, "domain": domain}
        for line_id, project, domain in found
    ]
    transaction.on_commit(partial(_log, lines, entries), robust=True)


def changed_fields(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of both whose values differ."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return (
        {name: before[name] for name in names if name in before},
        {name: after[name] for name in names if name in after},
    )


def fields_of(row: models.Model, *, without: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the columns of a row by field, except its id and those in `without`."""
    return {
        field.attname: getattr(row, field.attname)
        for field in row._meta.concrete_fields
        if not field.primary_key and field.name not in without
    }


_MAX_SUBJECT = 400

# The transaction's number is assigned before the ids of lines are drawn: see `follow_audit_lines`.
_INSERT = """
WITH own AS MATERIALIZED (SELECT pg_current_xact_id()::text::bigint AS xid), written AS (
    INSERT INTO controlplane_auditline (
        xid, at, actor, via, token, address, request_id,
        action, subject, text, project_id, domain_id, before, after)
    SELECT own.xid, %(at)s, %(actor)s, %(via)s, %(token)s, %(address)s, %(request_id)s,
           r.action, r.subject, r.text,
           coalesce(r.project_id, (SELECT project_id FROM controlplane_job WHERE id = r.job_id)),
           r.domain_id,
           r.before::jsonb, r.after::jsonb
    FROM own CROSS JOIN unnest(
        %(action)s::text[], %(subject)s::text[], %(text)s::text[], %(project_id)s::bigint[],
        %(domain_id)s::bigint[], %(job_id)s::bigint[], %(before)s::text[], %(after)s::text[]
    ) WITH ORDINALITY AS r (
        action, subject, text, project_id, domain_id, job_id, before, after, n)
    ORDER BY r.n
    RETURNING id, project_id, domain_id
)
SELECT w.id, p.name, d.name FROM written w
LEFT JOIN controlplane_project p ON p.id = w.project_id
LEFT JOIN controlplane_domain d ON d.id = coalesce(w.domain_id, p.domain_id)
ORDER BY w.id
"""


def _columns(entries: Sequence[AuditEntry]) -> dict[str, list[Any]]:
    return {
        "action": [str(entry.action) for entry in entries],
        "subject": [clean_text(entry.subject, _MAX_SUBJECT) for entry in entries],
        "text": [clean_text(entry.text) for entry in entries],
        "job_id": [entry.job_id for entry in entries],
        "project_id": [entry.project_id for entry in entries],
        "domain_id": [entry.domain_id for entry in entries],
        "before": [_as_json(entry.before) for entry in entries],
        "after": [_as_json(entry.after) for entry in entries],
    }


def _as_json(values: Mapping[str, Any] | None) -> str | None:
    return None if values is None else encoded(values)


def _log(lines: Sequence[Mapping[str, Any]], entries: Sequence[AuditEntry]) -> None:
    for line, entry in zip(lines, entries, strict=True):
        log.info(
            "audit",
            **line,
            action=str(entry.action),
            subject=entry.subject,
            text=entry.text,
            before=entry.before,
            after=entry.after,
        )
