"""Load the launch context that a cell fetches: `contract.messages.launch_context`."""

import base64
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from controlplane import clock
from controlplane.contract.messages.launch_context import LaunchContext
from controlplane.contract.states import FailureKind
from controlplane.contract.states import TaskState as S
from controlplane.domain.errors import NotFound
from controlplane.domain.jobs.secrets import read_registry
from controlplane.queries.attempts.artifacts import find_checkpoint, find_output_base
from controlplane.queries.attempts.gang import load_gang
from controlplane.queries.attempts.group_specs import links_at
from controlplane.queries.sql import decoded, first_row, rows, scalar
from controlplane.queries.tenancy.secrets import open_secrets

_MAX_SKEW = timedelta(hours=1)
"""More than the difference between the clocks of placement and of web."""


@dataclass(frozen=True, slots=True)
class LaunchContextFacts:
    """An attempt, with the facts for its launch context."""

    uid: UUID
    number: int
    task_id: int
    group_id: int
    job_id: int
    project_id: int
    created_at: datetime
    task_type: str
    index: int
    launch: dict[str, Any]


def load_launch_context(uid: UUID) -> LaunchContext:
    """Return the launch context of an open attempt. Raise NotFound, SealedOtherwise."""
    attempt = _load_attempt(uid)
    return LaunchContext(
        **_load_secrets(attempt),
        output_base=find_output_base(uid, attempt.launch),
        checkpoint=_load_checkpoint(attempt),
        plugin_state=_load_plugin_state(attempt),
        gang=load_gang(attempt.job_id, with_key=True).body()
        if attempt.launch.get("is_gang")
        else None,
    )


@dataclass(frozen=True, slots=True)
class RevealedSecrets:
    """The names of the secrets whose values a launch context has, of `project_id`.

    `since`: the creation of the attempt.
    """

    job_id: int
    project_id: int
    since: datetime
    names: tuple[str, ...]


def find_revealed_secrets(uid: UUID, context: LaunchContext) -> RevealedSecrets | None:
    """Return which secrets `context`, that of attempt `uid`, reveals; None if it reveals none."""
    if not context.secrets and context.registry is None:
        return None
    attempt = _load_attempt(uid)
    login = attempt.launch.get("registry_secret") if context.registry is not None else None
    names = {*context.secrets, *filter(None, [login])}
    return RevealedSecrets(
        attempt.job_id, attempt.project_id, attempt.created_at, tuple(sorted(names))
    )


def load_recorded_uses(*, cell: str, text: str, since: datetime) -> set[str]:
    """Return the subjects of the audit's lines with `text` about secrets that a cell used.

    `since`: the creation of the attempt that `text` names, which bounds the scan.
    """
    found = rows(
        """
        SELECT subject FROM controlplane_auditline
        WHERE actor = %s AND action = 'use.secret' AND text = %s AND at >= %s
        """,
        [cell, text, since - _MAX_SKEW],
    )
    return {subject for (subject,) in found}


def _load_secrets(attempt: LaunchContextFacts) -> dict[str, Any]:
    """Return the secrets that the group names, and the login to its image's registry."""
    used = {item["name"] for item in attempt.launch.get("secrets", ())}
    login = attempt.launch.get("registry_secret")
    opened = open_secrets(attempt.project_id, {*used, *filter(None, [login])})
    value = None if login is None else opened.values.get(login)
    registry = None if value is None else read_registry(value)
    return {
        "secrets": {name: base64.b64encode(opened.values[name]).decode() for name in used}
        if not opened.missing
        else {},
        "missing": opened.missing,
        "unusable": (login,) if value is not None and registry is None else (),
        "registry": registry,
    }


def _load_checkpoint(attempt: LaunchContextFacts) -> dict[str, Any] | None:
    """Return the checkpoint of an earlier attempt; from the local store, with a fresh link."""
    if not attempt.launch.get("checkpoint_path"):
        return None
    found = find_checkpoint(attempt.task_id, attempt.number)
    if found is not None and found["uri"].startswith("/"):
        found["url"] = links_at(clock.now())(attempt.group_id, found["uri"])
    return found


def _load_attempt(uid: UUID) -> LaunchContextFacts:
    found = first_row(
        """
        SELECT a.uid, a.number, a.task_id, a.group_id, a.job_id, j.project_id, a.created_at,
               g.task_type, t.index, g.launch
        FROM controlplane_attempt a
        JOIN controlplane_task t ON t.id = a.task_id
        JOIN controlplane_taskgroup g ON g.id = a.group_id
        JOIN controlplane_job j ON j.id = a.job_id
        WHERE a.uid = %s AND a.finished_at IS NULL
        """,
        [uid],
    )
    if found is None:
        raise NotFound(f"there is no attempt {uid} that has not ended")
    return LaunchContextFacts(**found._asdict() | {"launch": decoded(found.launch)})


def _load_plugin_state(attempt: LaunchContextFacts) -> dict[str, Any] | None:
    """Return the newest state that an earlier attempt reported since the last user failure.

    Skip attempts that ended before they reported a state, such as refused or drained ones. A user
    failure clears the state (Flyte: in-place restart), so that no earlier state returns.
    """
    state_json = scalar(
        """
        SELECT CASE WHEN NOT clears THEN state_json END FROM (
            SELECT number, details -> 'plugin_state' AS state_json,
                   state = %s AND failure_kind <> %s AS clears
            FROM controlplane_attempt WHERE task_id = %s AND number < %s
        ) earlier
        WHERE clears OR state_json IS NOT NULL ORDER BY number DESC LIMIT 1
        """,
        [int(S.FAILED), FailureKind.SYSTEM, attempt.task_id, attempt.number],
    )
    return None if state_json is None else decoded(state_json)
