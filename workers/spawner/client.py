"""A connection to the spawner: JSON arrays, one per line."""

import json
import socket
from typing import Any

READ_BYTES = 262144


class SpawnerClient:
    """A connection of the cell or its guard."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.incoming = b""
        self.outgoing: list[bytes] = []
        self.has_unsent = False  # the socket buffer is full

    def send(self, *what: Any) -> None:
        """Queue a message, which is sent at the end of this round."""
        self.outgoing.append(json.dumps(what).encode() + b"\n")

    def requests(self) -> tuple[list[Any], bool]:
        """Return the received requests, and whether the connection is open."""
        try:
            block = self.connection.recv(READ_BYTES)
        except BlockingIOError:
            return [], True
        except OSError:
            block = b""
        *lines, self.incoming = (self.incoming + block).split(b"\n")
        return [json.loads(line) for line in lines], bool(block)
