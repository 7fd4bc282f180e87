"""Send a message by Apprise in a process of its own, which a time limit ends."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from controlplane.contract.addresses import Network
from controlplane.domain.notifications.messages import SEND_SECONDS, Message

_ROOT = Path(__file__).resolve().parents[3]
_MODULE = "controlplane.outbox.notifications.child"


def send(
    url: str, message: Message, *, allowed: Sequence[Network], seconds: float = SEND_SECONDS
) -> str:
    """Return why the message was not sent; empty if the service accepted it.

    The URL reaches the process by its stdin, and no text that a service or Apprise writes is
    returned, since it may contain parts of the URL.
    """
    order = {
        "url": url,
        "title": message.title,
        "body": message.body,
        "allowed": [str(network) for network in allowed],
    }
    # Without the settings of the control plane, which contain secrets.
    environment = {"PYTHONPATH": str(_ROOT), "PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.UTF-8"}
    try:
        ended = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", _MODULE],
            input=json.dumps(order).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the service did not respond within {seconds:g} s"
    try:
        error: str = json.loads(ended.stdout.splitlines()[-1])["error"]
    except (IndexError, KeyError, ValueError):
        return f"the process that sends ended with the status {ended.returncode}"
    return error
