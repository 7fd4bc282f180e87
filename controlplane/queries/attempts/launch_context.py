"""Load what a cell asks for beside the order of an attempt; see `contract.messages.briefing`."""

import base64
from dataclasses import dataclass
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
from controlplane.queries.sql import decoded, first_row, scalar
from controlplane.queries.tenancy.secrets import open_secrets


@dataclass(frozen=True, slots=True)
class LaunchContextFacts:
    """The attempt that is asked about, with what its briefing is made of."""

    uid: UUID
    number: int
    task_id: int
    group_id: int
    job_id: int
    project_id: int
    task_type: str
    index: int
    launch: dict[str, Any]


def load_briefing(uid: UUID) -> LaunchContext:
    """The briefing of an attempt that has not ended. Raises NotFound, SealedOtherwise."""
    asked = _load_asked(uid)
    return LaunchContext(
        **_load_secrets(asked),
        output_base=find_output_base(uid, asked.launch),
        checkpoint=_load_checkpoint(asked),
        plugin_state=_load_plugin_state(asked),
        gang=_load_gang(asked),
    )


def _load_gang(asked: LaunchContextFacts) -> dict[str, Any] | None:
    if not asked.launch.get("is_gang"):
        return None
    return load_gang(asked.job_id, with_key=True).body()


def _load_secrets(asked: LaunchContextFacts) -> dict[str, Any]:
    """The secrets that the group names, and the login to its image's registry."""
    used = {item["name"] for item in asked.launch.get("secrets", ())}
    login = asked.launch.get("registry_secret")
    opened = open_secrets(asked.project_id, {*used, *filter(None, [login])})
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


def _load_checkpoint(asked: LaunchContextFacts) -> dict[str, Any] | None:
    """What an earlier attempt left for this one; in our store, by a link that opens it now."""
    if not asked.launch.get("checkpoint_path"):
        return None
    found = find_checkpoint(asked.task_id, asked.number)
    if found is not None and found["uri"].startswith("/"):
        found["url"] = links_at(clock.now())(found["uri"])
    return found


def _load_asked(uid: UUID) -> LaunchContextFacts:
    found = first_row(
        """
        SELECT a.uid, a.number, a.task_id, a.group_id, a.job_id, j.project_id, g.task_type,
               t.index, g.launch
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


def _load_plugin_state(asked: LaunchContextFacts) -> dict[str, Any] | None:
    """Return the newest state that an earlier attempt reported since the last user failure.

    Attempts that ended before they reported a state, such as refused or drained ones, are passed
    over. A user failure clears the state (Flyte: in-place restart): none from before it comes back.
    """
    kept = scalar(
        """
        SELECT CASE WHEN NOT clears THEN kept END FROM (
            SELECT number, details -> 'plugin_state' AS kept,
                   state = %s AND failure_kind <> %s AS clears
            FROM controlplane_attempt WHERE task_id = %s AND number < %s
        ) earlier
        WHERE clears OR kept IS NOT NULL ORDER BY number DESC LIMIT 1
        """,
        [int(S.FAILED), FailureKind.SYSTEM, asked.task_id, asked.number],
    )
    return None if kept is None else decoded(kept)
