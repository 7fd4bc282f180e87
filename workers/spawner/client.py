"""A connection to the spawner: JSON arrays, one a line."""

import json
import socket
from typing import Any

READ_BYTES = 262144


class SpawnerClient:
    """A connection: the cell's, or its guard's."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.incoming = b""
        self.outgoing: list[bytes] = []
        self.is_waiting = False  # until it reads on

    def send(self, *what: Any) -> None:
        """Send it at the end of this round."""
        self.outgoing.append(json.dumps(what).encode() + b"\n")

    def requests(self) -> tuple[list[Any], bool]:
        """What it asks, and whether it is still there."""
        try:
            block = self.connection.recv(READ_BYTES)
        except BlockingIOError:
            return [], True
        except OSError:
            block = b""
        *lines, self.incoming = (self.incoming + block).split(b"\n")
        return [json.loads(line) for line in lines], bool(block)
