"""Callback requests: bodies, signatures and the retry schedule."""

import hmac
import json
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, overload

from controlplane.contract.wire.keys import derive_key
from controlplane.domain.state.backoff import doubled_seconds

GIVE_UP_AFTER = timedelta(days=1)
"""Time for the delivery of a job's callback; a one-off task is deleted earlier."""

CLAIM_SECONDS = 30.0
"""Duration of a claim (as in Diego). It is longer than any try, so an expired claim is of a worker
that has died."""

MAX_TRY_SECONDS = 20.0
"""Timeout of a try, so that its result is recorded within the claim."""

FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 900.0

POSTPONED_SECONDS = 1.0
"""Wait while another client resolves the task."""

_MAX_ERROR = 500
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def wait_seconds(tries: int, *, callback_id: int) -> float:
    """Return seconds from the end of try `tries` (from 1) to the next: 1, 2, 4, … up to 15 min."""
    return doubled_seconds(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS, tries, row_id=callback_id)


def is_delivered(status: int | None) -> bool:
    """Return whether the HTTP status confirms the delivery."""
    return status is not None and 200 <= status <= 299


@overload
def nanoseconds_of(at: datetime) -> int: ...
@overload
def nanoseconds_of(at: None) -> None: ...
def nanoseconds_of(at: datetime | None) -> int | None:
    """Return nanoseconds since 1970, with the precision of a microsecond."""
    return None if at is None else (at - _EPOCH) // timedelta(microseconds=1) * 1_000


def one_line(text: str) -> str:
    """Return an error text on one line, without NUL, and bounded."""
    return " ".join(text.replace("\0", " ").split())[:_MAX_ERROR]


def callback_key(secret_key: str, *, user_id: int) -> bytes:
    """Return the key with which the callbacks of one user are signed."""
    info = f"cellrun callbacks of user {user_id}".encode()
    return derive_key(secret_key.encode(), salt=b"cellrun", info=info)


def key_text(key: bytes) -> str:
    """Return a key in the format of Standard Webhooks."""
    return f"whsec_{b64encode(key).decode()}"


def request_headers(
    key: bytes, body: bytes, callback_id: int, number: int, at: datetime
) -> dict[str, str]:
    """Return the headers of a callback's try `number`, signed as Standard Webhooks specifies."""
    message, seconds = f"callback_{callback_id}", int(at.timestamp())
    mac = hmac.digest(key, f"{message}.{seconds}.".encode() + body, "sha256")
    return {
        "Content-Type": "application/json",
        "User-Agent": "cellrun",
        "webhook-id": message,
        "webhook-timestamp": str(seconds),
        "webhook-signature": f"v1,{b64encode(mac).decode()}",
        "X-Cellrun-Try": str(number),
    }


def task_body(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body for a task: Diego's TaskCallbackResponse, with more fields for jobs."""
    body = {
        "task_guid": task["guid"],
        "failed": task["state"] != "SUCCEEDED",
        "failure_reason": task["failure_reason"],
        "result": task["result"] or "",
        "annotation": task["annotation"],
        "created_at": nanoseconds_of(task["created_at"]),
    }
    if task["is_one_off"]:
        return body
    job_fields = (
        "task",
        "job",
        "group",
        "index",
        "state",
        "exit_code",
        "cell_id",
        "result_truncated",
    )
    instants = ("started_at", "finished_at")
    return {
        **body,
        "event": "task",
        **{name: task[name] for name in job_fields},
        **{name: _instant(task[name]) for name in instants},
    }


def job_body(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body for a job."""
    fields = ("job", "guid", "name", "state", "failure_reason", "task_status_count")
    instants = ("created_at", "started_at", "finished_at", "settled_at")
    return {
        "event": "job",
        **{name: job[name] for name in (*fields, "annotation", "labels")},
        **{name: _instant(job[name]) for name in instants},
    }


def encode(body: Mapping[str, Any]) -> bytes:
    """Return `body` as the bytes that are signed and sent."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )


def _instant(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")
