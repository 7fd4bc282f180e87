"""Examples of request bodies and path parameters in the OpenAPI description.

The operation of an endpoint's method names its example; a test sends each to the API.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_JOB = {
    "name": "train",
    "image": "registry.example.org/train:7",
    "command": ["python", "train.py"],
    "resources": {"cpu": 1, "memory": "1Gi"},
    "replicas": 3,
    "labels": {"team": "vision"},
    "guid": "train-2031-05-04",
}
_MATCHING = {"pool": "default", "labels": {"team": "vision"}}

BODIES: Mapping[str, Any] = MappingProxyType(
    {
        "close_alert": {"reason": "the machine is gone for good"},
        "exec_attempt": {"command": ["sh", "-c", "nvidia-smi"], "tty": False, "stdin": False},
        "release_attempt": {"reason": "the host was reinstalled"},
        "put_auditor": {},
        "start_bulk_operation": {
            "action": "cancel",
            "filter": {"pool": "default"},
            "reason": "wrong input",
        },
        "preview_bulk_operation": {"action": "cancel", "filter": _MATCHING},
        "stop_bulk_operation": {},
        "repeat_callback": {},
        "put_cell": {"pool": "gpu"},
        "cordon_cell": {"reason": "new kernel"},
        "drain_cell": {"deadline_seconds": 3600, "reason": "new disks"},
        "uncordon_cell": {"reason": "done"},
        "unquarantine_cell": {"reason": "the disk was replaced"},
        "put_domain_member": {"role": "viewer"},
        "submit_job": _JOB,
        "submit_jobs": {"jobs": [_JOB, {**_JOB, "name": "test", "guid": "test-2031-05-04"}]},
        "dry_run_job": _JOB,
        "cancel_job": {"reason": "wrong input", "force": False},
        "hold_job": {"reason": "waits for the licence"},
        "release_job": {"reason": "the licence is there"},
        "move_job": {"to": "front", "reason": "demonstration at noon"},
        "retry_job": {},
        "put_notification_address": {"url": "json://hooks.example.org/cellrun"},
        "test_notification_address": {},
        "put_notification_rule": {"address": "ops", "about": "alerts", "only_critical": True},
        "put_pool": {"strict_fifo": True, "tokens": {"licence": 2}},
        "confirm_loss": {},
        "put_project": {"archived": False},
        "hold_project": {"reason": "over budget"},
        "put_project_member": {"role": "submitter"},
        "release_project": {"reason": "the budget is raised"},
        "put_service_account": {"role": "submitter"},
        "put_quota": {"running_tasks": 100, "resources": {"cpu": 64, "memory": "256Gi"}},
        "put_schedule": {
            "cron": "0 3 * * *",
            "time_zone": "Europe/Berlin",
            "overlap": "skip",
            "job": {key: value for key, value in _JOB.items() if key != "guid"},
        },
        "pause_schedule": {"reason": "the input is late"},
        "resume_schedule": {"reason": "the input is there"},
        "run_schedule": {},
        "put_secret": {"value": "s3cret"},
        "desire_task": {
            "guid": "convert-17",
            "domain": "convert",
            "definition": {
                "image": "busybox:1.36",
                "command": ["echo", "done"],
                "resources": {"cpu": 0.5, "memory": "64Mi"},
            },
        },
        "cancel_task": {"reason": "wrong input", "force": False},
        "resolve_task": {},
        "create_token": {"name": "laptop", "role": "submitter", "expires_in_days": 90},
        "put_user": {"active": True},
    }
)
"""operationId -> the body of a request in JSON."""

PATHS: Mapping[str, str | int] = MappingProxyType(
    {
        "alert_id": 17,
        "callback_id": 17,
        "digest": "0" * 64,
        "domain": "default",
        "group_id": 17,
        "job_id": 17,
        "key": "train@1",
        "kind": "project",
        "members": "users",
        "operation_id": 17,
        "project": "default",
        "stream": "stdout",
        "task": "17",
        "token_id": 17,
        "uid": "01890a5d-ac96-774b-bcce-b302099a8057",
    }
)
"""Parameter of a path -> a value. Those of `name` follow from the resource."""

NAMES: Mapping[str, str] = MappingProxyType(
    {
        "attempts": "model",
        "auditors": "ann",
        "cells": "cell-1",
        "domains": "ann",
        "notification-addresses": "ops",
        "notification-rules": "night",
        "pools": "default",
        "projects": "ann",
        "quotas": "default/vision",
        "schedules": "nightly",
        "secrets": "password",
        "store": "model",
        "tasks": "model",
        "users": "ann",
    }
)
"""First part of a path -> a value of its parameter `name`."""


def example_of(path: str, name: str) -> str | int | None:
    """Return a value of a parameter of a path of the API."""
    if name != "name":
        return PATHS.get(name)
    return NAMES.get(path.removeprefix("/api/v1/").partition("/")[0])
