"""How a message lies in a Redis list: in kombu's envelope, a Celery task or a plain text.

Both sides push messages themselves, many in one pipeline, because publishing one by one through
Celery costs 0.4 ms each; consumers are ordinary Celery workers and kombu consumers.
"""

import base64
import json
import uuid
from typing import Any


def task_message(queue: str, task: str, args: list[Any], *, expires: str | None = None) -> str:
    """A Celery task message for `queue`. `expires`: ISO instant after which a worker drops it."""
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
    """A message for `queue` whose body is `text`."""
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
