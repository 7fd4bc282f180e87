"""The process that sends one message by Apprise: read it from stdin, print the result as JSON.

An audit hook of Python refuses what no plugin needs: forbidden addresses, at the socket, local
sockets, programs, and files outside of Python's own. The process ends with the try.
"""

import ipaddress
import json
import logging
import mimetypes
import os
import re
import socket
import sys
from typing import Any

from controlplane.contract.addresses import Network, refuse_address
from controlplane.outbox.notifications.schemes import make_plugin

_PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "pty.spawn")
_STATUS = re.compile(r"error=(\d{3})\b")
_CERTIFICATES = ("/etc/ssl/certs/", "/etc/ssl/openssl.cnf", "/etc/pki/", "/usr/lib/ssl")
_ZONES = ("/etc/localtime", "/etc/timezone", "/usr/share/zoneinfo")
# Other files below /etc may contain secrets, also those of the control plane.
_SYSTEM = (*_CERTIFICATES, *_ZONES, *map(str, mimetypes.knownfiles), "/dev/null", "/dev/urandom")
# What plugins add to a title that they write into the body.
_MARGIN = 32
NOT_ACCEPTED = "the service did not accept the message"


class SendGuard:
    """Refuses events of Python's audit hooks. `refused`: the text of the last refusal."""

    def __init__(self, allowed: tuple[Network, ...]) -> None:
        self._allowed = allowed
        self._readable = (sys.prefix, sys.base_prefix, os.path.dirname(os.__file__), *_SYSTEM)
        self.refused = ""

    def __call__(self, event: str, values: tuple[Any, ...]) -> None:
        """Raise PermissionError if the event is refused."""
        if event in ("socket.connect", "socket.sendto"):
            self._refuse(self._judge_socket(*values[:2]))
        elif event in _PROGRAMS:
            self._refuse("a program was to be started")
        elif event == "open":
            self._refuse(self._judge_file(*values[:3]))

    def _refuse(self, why: str | None) -> None:
        if why is not None:
            self.refused = why
            raise PermissionError(why)

    def _judge_socket(self, used: Any, address: Any) -> str | None:
        if used.family not in (socket.AF_INET, socket.AF_INET6):
            return "a local socket was to be used"
        return refuse_address(ipaddress.ip_address(address[0].partition("%")[0]), self._allowed)

    def _judge_file(self, path: Any, mode: Any, flags: int) -> str | None:
        if isinstance(path, int):
            return None
        name = os.path.realpath(os.fsdecode(path))
        is_written = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and name != "/dev/null"
        if is_written or not name.startswith(self._readable):
            return "a local file was to be opened"
        return None


class _Statuses(logging.Handler):
    """Keeps the last HTTP status in Apprise's lines, which may contain secrets otherwise."""

    status = ""

    def emit(self, record: logging.LogRecord) -> None:
        found = _STATUS.search(record.getMessage())
        self.status = found[1] if found else self.status


def _answer(error: str) -> None:
    sys.stdout.write(json.dumps({"error": error}) + "\n")


def render(plugin: Any, title: str, body: str) -> dict[str, Any]:
    """Return the arguments of a plugin, in its format: nothing in the texts is markup.

    A plugin alone takes them for its own format, such as HTML in mails. Lines that make the body
    too long for the service are omitted: it would refuse the message, at each try.
    """
    from apprise import NotifyFormat
    from apprise.conversion import convert_between

    form = plugin.resolve_format(NotifyFormat.TEXT)
    if plugin.title_maxlen <= 0:  # the plugin writes the title into the body
        title = convert_between(NotifyFormat.TEXT, form, title)
    lines = body.split("\n")
    rendered = convert_between(NotifyFormat.TEXT, form, body)
    for kept in range(len(lines) - 1, 0, -1):
        if len(title) + _MARGIN + len(rendered) <= plugin.body_maxlen:
            break
        shorter = "\n".join([*lines[:kept], "…"])
        rendered = convert_between(NotifyFormat.TEXT, form, shorter)
    return {"title": title, "body": rendered, "body_format": form}


def main() -> None:
    """Send the message."""
    order = json.load(sys.stdin)
    plugin = make_plugin(order["url"])
    if plugin is None:
        _answer("Apprise does not accept the address")
        return
    statuses, logger = _Statuses(), logging.getLogger("apprise")
    logger.disabled = False
    logger.addHandler(statuses)
    guard = SendGuard(tuple(ipaddress.ip_network(text) for text in order["allowed"]))
    sys.addaudithook(guard)
    try:
        is_sent = plugin.notify(**render(plugin, order["title"], order["body"]))
    except Exception as raised:
        is_sent, statuses.status = False, type(raised).__name__
    error = guard.refused or (f"{NOT_ACCEPTED} ({statuses.status})" if statuses.status else "")
    _answer("" if is_sent else error or NOT_ACCEPTED)


if __name__ == "__main__":
    main()
