"""Find free ports outside the kernel's range for outgoing connections."""

import random
import socket

# The ephemeral range starts at 32768; any outgoing connection may take a port from it.
FIRST, LAST = 15_000, 32_000
TRIES = 200


def is_free(port: int) -> bool:
    """Return whether a server can listen on 127.0.0.1:port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port(*, taken: set[int] | None = None) -> int:
    """Return a free port that is not in `taken`, and add it there."""
    taken = set() if taken is None else taken
    for _ in range(TRIES):
        port = random.randint(FIRST, LAST)
        if port not in taken and is_free(port):
            taken.add(port)
            return port
    raise RuntimeError(f"no free port found between {FIRST} and {LAST}")
