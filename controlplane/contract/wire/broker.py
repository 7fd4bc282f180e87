"""Format of messages in Redis lists: kombu's envelope with a Celery task or a plain text.

Both sides push many messages in one pipeline, because publishing through Celery takes 0.4 ms per
message; consumers are ordinary Celery workers and kombu consumers.
"""

import base64
import json
import uuid
from typing import Any

from controlplane.contract.wire.envelope import MAX_BYTES

MAX_BODY_CHARS = 4 * MAX_BYTES
"""Maximum length of a body: quoting at most doubles an envelope, and base64 adds a third."""

MAX_ENTRY_BYTES = MAX_BODY_CHARS + 64 * 1024
"""Maximum length of a list entry: a body, headers and properties."""

_NO_MESSAGE = b"null"


def bound_entry(reply: Any) -> tuple[Any, Any] | None:
    """Return the reply to BRPOP, with an oversized entry replaced by one that is dropped.

    An oversized entry is not decoded, because its objects would take twenty times its length.
    """
    if not reply:
        return None
    queue, entry = reply
    return queue, entry if len(entry) <= MAX_ENTRY_BYTES else _NO_MESSAGE


def find_refusal(message: Any) -> str | None:
    """Return why a message from Redis is dropped before decoding, or None if it is accepted.

    Neither side compresses messages. Kombu would decompress any `compression` or Python codec
    without a size limit and before the MAC is checked: 400 kB become 1.2 GB. An invalid delivery
    tag or route would raise in the Redis client and end the worker.
    """
    if not isinstance(message, dict) or not isinstance(message.get("headers", {}), dict | None):
        return f"it is not a kombu message, or has more than {MAX_ENTRY_BYTES} bytes"
    headers = message.get("headers") or {}
    if "compression" in headers:
        return "it is compressed"
    if message.get("content-type") != "application/json":
        return "its content type is not application/json"
    if message.get("content-encoding") != "utf-8":
        return "its content encoding is not utf-8"
    if not _is_routed(message.get("properties")):
        return "its properties have no delivery tag or route"
    body = message.get("body")
    if not isinstance(body, str):
        return "its body is not a text"
    if len(body) > MAX_BODY_CHARS:
        return f"its body of {len(body)} characters exceeds the limit of {MAX_BODY_CHARS}"
    return None


def _is_routed(properties: Any) -> bool:
    match properties:
        case {
            "delivery_tag": str(tag),
            "delivery_info": {"exchange": str(), "routing_key": str()},
        }:
            return bool(tag)
    return False


def task_message(queue: str, task: str, args: list[Any], *, expires: str | None = None) -> str:
    """Return a Celery task message for `queue`.

    `expires`: ISO instant after which a worker drops the message.
    """
    task_id = str(uuid.uuid4())
    headers = {
        "lang": "py",
        "task": task,
        "id": task_id,
        "root_id": task_id,
        "parent_id": None,
        "group": None,
        "retries": 0,
        "eta": None,
        "expires": expires,
        "timelimit": [None, None],
        "argsrepr": "",
        "kwargsrepr": "",
        "ignore_result": True,
    }
    embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    return _message(queue, json.dumps([args, {}, embed]), headers, correlation_id=task_id)


def plain_message(queue: str, text: str) -> str:
    """Return a message for `queue` with the body `text`."""
    return _message(queue, json.dumps(text), {}, correlation_id=None)


def _message(queue: str, body: str, headers: dict[str, Any], correlation_id: str | None) -> str:
    properties = {
        "correlation_id": correlation_id,
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": queue},
        "priority": 0,
        "body_encoding": "base64",
        "delivery_tag": str(uuid.uuid4()),
    }
    return json.dumps(
        {
            "body": base64.b64encode(body.encode()).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": headers,
            "properties": properties,
        }
    )
