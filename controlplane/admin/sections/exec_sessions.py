"""The section of a page with the programs that users ran inside an attempt."""

import shlex
from uuid import UUID

from controlplane.admin.badges import NOTHING, instant
from controlplane.admin.base import Section, Table
from controlplane.queries.attempts.exec_sessions import list_exec_sessions

SHOWN = 20
_COMMAND_CHARS = 300


def exec_sections(uid: UUID) -> list[Section]:
    """Return the newest exec sessions of an attempt; none without one."""
    found = list_exec_sessions(uid, before=None, limit=SHOWN)
    columns = ("user", "command", "state", "requested", "ended", "exit code", "reason")
    rows = [
        (
            item["actor"],
            shlex.join(item["command"])[:_COMMAND_CHARS],
            item["state"],
            instant(item["requested_at"]),
            NOTHING if item["ended_at"] is None else instant(item["ended_at"]),
            NOTHING if item["exit_code"] is None else item["exit_code"],
            item["reason"],
        )
        for item in found
    ]
    title = "Programs that users ran inside"
    return [Table(title, anchor="exec", columns=columns, rows=rows)] if rows else []
