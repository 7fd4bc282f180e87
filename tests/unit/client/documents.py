"""Documents as the API answers them, for tests to change what they are about."""

from typing import Any

from cellrun.documents import (
    BulkOperation,
    CacheEntry,
    Cell,
    Change,
    Job,
    NotificationMessageDocument,
    NotificationRuleDocument,
    Pool,
    Quota,
    Task,
)

AT = "2026-11-20T12:00:00Z"


def a_job(**changes: Any) -> Job:
    """A RUNNING job of two tasks."""
    job: Any = {
        "id": 7,
        "guid": None,
        "name": "sweep",
        "owner": "ann",
        "domain": "default",
        "project": "default",
        "pool": "default",
        "band": "interactive",
        "kind": "batch",
        "state": "RUNNING",
        "ending_as": None,
        "failure_reason": "",
        "min_available": 2,
        "max_task_failures": 0,
        "task_status_count": {"main": {"phase": {"RUNNING": 1, "PENDING": 1}}},
        "groups": [
            {"name": "main", "tasks": 2, "min_available": 2, "network": "default", "prepared": {}}
        ],
        "coscheduled": False,
        "requeuing": False,
        "parent": None,
        "children": 0,
        "retry_of": None,
        "schedule": None,
        "waits_for": [],
        "queue_rank": 0,
        "holds": [],
        "trace": None,
        "labels": {},
        "annotation": "",
        "created_at": AT,
        "started_at": AT,
        "finished_at": None,
        "settled_at": None,
        "spec": {},
    }
    return job | changes  # type: ignore[no-any-return]


def a_task(**changes: Any) -> Task:
    """A PENDING task that was never placed."""
    task: Any = {
        "id": 70,
        "guid": "01890a5d-ac96-774b-bcce-b302099a8070",
        "job": 7,
        "group": "main",
        "index": 0,
        "state": "PENDING",
        "pending_reason": None,
        "attempt_number": 0,
        "attempt_uid": None,
        "cell_id": None,
        "failure_reason": "",
        "failure_kind": None,
        "exit_code": None,
        "retry_rule": None,
        "resources": {"cpu": 0.5, "memory_mib": 128},
        "result": None,
        "cache_status": "DISABLED",
        "cache_key": None,
        "cache_origin": None,
        "started_at": None,
        "finished_at": None,
    }
    return task | changes  # type: ignore[no-any-return]


def a_cache_entry(**changes: Any) -> CacheEntry:
    """An entry with one output, whose task is of another job."""
    entry: Any = {
        "id": 5,
        "key": "model:2031@1",
        "scope": "project",
        "domain": "default",
        "project": "default",
        "origin": {
            "job": 12,
            "task": 40,
            "attempt_uid": "01890a5d-ac96-774b-bcce-b302099a8057",
            "submitter": "ann",
            "populated_at": AT,
        },
        "hits": 3,
        "used_at": AT,
        "size_bytes": 1536,
        "outputs_count": 1,
        "result": "42",
        "outputs": [
            {"name": "model", "size": 1534, "sha256": "ab" * 32, "uri": "/api/v1/attempts/x"}
        ],
    }
    return entry | changes  # type: ignore[no-any-return]


def a_cell(**changes: Any) -> Cell:
    """A READY cell."""
    cell: Any = {
        "name": "cell-1",
        "state": "READY",
        "state_reason": "restarted",
        "pool": "default",
        "labels": {},
        "tags": [],
        "capacity": {"cpu": 2.0, "memory_mib": 2048},
        "free": {"cpu": 0.5, "memory_mib": 1024},
        "max_capacity": {},
        "drivers": ["docker"],
        "task_types": ["container"],
        "revoked_at": None,
        "mismatch": "",
        "last_seen_at": AT,
        "drain_deadline_at": None,
        "drain": None,
        "quarantined_until": None,
        "clock_ahead_seconds": 0.1,
        "silent": False,
    }
    return cell | changes  # type: ignore[no-any-return]


def a_pool(**changes: Any) -> Pool:
    """A pool as it is made."""
    pool: Any = {
        "name": "default",
        "sequencer": "fifo",
        "selector": "dispersed",
        "validators": ["dependencies", "user_quota"],
        "strict_fifo": False,
        "preemption": True,
        "pending_timeout_seconds": None,
        "pull_timeout_seconds": 1800,
        "create_timeout_seconds": 300,
        "max_building_per_cell": 8,
        "starvation_seconds": 300,
        "tokens": {},
    }
    return pool | changes  # type: ignore[no-any-return]


def a_quota(**changes: Any) -> Quota:
    """A user's quota, some of which is used."""
    quota: Any = {
        "kind": "user",
        "name": "ann",
        "resources": {"cpu": 4.0, "memory_mib": 65536},
        "running_tasks": 7,
        "running_jobs": None,
        "pending_tasks": None,
        "stored_bytes": None,
        "weight": 1.0,
        "highest_band": "interactive",
        "is_default": False,
        "usage": {
            "resources": {"cpu": 1.5, "memory_mib": 96},
            "running_tasks": 3,
            "running_jobs": 1,
            "pending_tasks": 5,
            "stored_bytes": None,
        },
    }
    return quota | changes  # type: ignore[no-any-return]


def a_change(**changes: Any) -> Change:
    """A task was placed, and started a second and a half later."""
    change: Any = {
        "id": 700,
        "job": 7,
        "task": 70,
        "task_name": "main.0",
        "attempt_uid": "u-1",
        "attempt_number": 1,
        "cell_id": "cell-1",
        "from_state": "PENDING",
        "to_state": "ASSIGNED",
        "attempt_state": "ASSIGNED",
        "reason": "placed",
        "text": "placed on a cell",
        "message": "",
        "actor": "placement",
        "actor_kind": "control_plane",
        "first_at": AT,
        "last_at": AT,
        "count": 1,
        "tasks": 1,
        "seconds": 1.5,
        "longest_seconds": 1.5,
        "still": 0,
    }
    return change | changes  # type: ignore[no-any-return]


def a_bulk_operation(**changes: Any) -> BulkOperation:
    """A running operation that cancels two jobs, before its first page."""
    operation: Any = {
        "id": 5,
        "action": "cancel",
        "filter": {
            "project": "default/lab",
            "pool": None,
            "name": None,
            "labels": {},
            "states": [],
        },
        "reason": "wrong data",
        "by": "ann",
        "state": "running",
        "created_at": AT,
        "ended_at": None,
        "ended_because": "",
        "expected": 2,
        "done": 0,
        "refused": 0,
        "refusals": [],
    }
    return operation | changes  # type: ignore[no-any-return]


def a_rule(**changes: Any) -> NotificationRuleDocument:
    """A rule about all alerts, without quiet hours."""
    rule: Any = {
        "name": "night",
        "address": "ops",
        "enabled": True,
        "about": "alerts",
        "kinds": [],
        "only_critical": False,
        "projects": [],
        "states": [],
        "name_pattern": "",
        "label": "",
        "group_wait_seconds": 30,
        "group_interval_seconds": 300,
        "quiet_hours": None,
        "critical_passes": True,
    }
    return rule | changes  # type: ignore[no-any-return]


def a_message(**changes: Any) -> NotificationMessageDocument:
    """A test message before its try."""
    message: Any = {
        "id": 31,
        "rule": None,
        "is_test": True,
        "title": "Test",
        "body": "A test.",
        "state": "waiting",
        "tries": 0,
        "due_at": AT,
        "created_at": AT,
        "ended_at": None,
        "last_error": "",
    }
    return message | changes  # type: ignore[no-any-return]


def a_page(*results: Any, following: str | None = None) -> dict[str, Any]:
    """A page of a list."""
    return {"results": list(results), "next": following}
