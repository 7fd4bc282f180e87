"""A cable that a test can pull: a proxy in front of a socket, the engine's or another."""

import contextlib
import socket
import threading
from collections.abc import Callable

BLOCK_BYTES = 4096  # at once: a slow line is as smooth as that
Address = str | tuple[str, int]
"""A path, or a host and its port."""


class Cable:
    """Listens at `address` and passes everything to `target`, while it is plugged in."""

    def __init__(self, address: Address, target: Address) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        self._is_plugged = True
        self._changed = threading.Condition()
        self._rate = float("inf")
        self._held: bytes | None = None
        self._server = _socket_for(address)
        self._server.bind(address)
        self._server.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        """Where it listens, if that is a port."""
        return int(self._server.getsockname()[1])

    @property
    def is_idle(self) -> bool:
        """Return whether no client is connected."""
        with self._lock:
            return not self._ends

    def throttle(self, rate: float) -> None:
        """Let so many bytes of answers pass in a second, on each connection."""
        with self._changed:
            self._rate = rate
            self._changed.notify_all()

    def hold(self, words: bytes | None) -> None:
        """Keep back requests that contain `words`, as a target that hangs; None: let them pass."""
        with self._changed:
            self._held = words
            self._changed.notify_all()

    def pull(self) -> None:
        """Cut every connection, and take no new one."""
        with self._lock:
            self._is_plugged = False
            for end in self._ends:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def plug(self) -> None:
        """Take connections again."""
        with self._lock:
            self._is_plugged = True

    def close(self) -> None:
        """Cut, for good."""
        self.hold(None)
        self.pull()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                with self._lock:
                    if not self._is_plugged:
                        near.close()
                        continue
                    far = _socket_for(self._target)
                    try:
                        far.connect(self._target)
                    except OSError:  # the other end does not listen at the moment
                        far.close()
                        near.close()
                        continue
                    self._ends += [near, far]
                for source, sink in ((near, far), (far, near)):
                    wait = self._go_slowly if source is far else self._hold_back
                    copying = (source, sink, wait)
                    threading.Thread(target=self._copy, args=copying, daemon=True).start()

    def _go_slowly(self, block: bytes) -> None:
        """Return when this part of an answer may pass."""
        with self._changed:
            rate = self._rate
            self._changed.wait_for(lambda: self._rate != rate, len(block) / rate)

    def _hold_back(self, block: bytes) -> None:
        """Return when this part of a request may pass."""
        with self._changed:
            self._changed.wait_for(lambda: self._held is None or self._held not in block)

    def _copy(
        self, source: socket.socket, sink: socket.socket, wait: Callable[[bytes], None]
    ) -> None:
        with contextlib.suppress(OSError):
            while block := source.recv(BLOCK_BYTES):
                wait(block)
                sink.sendall(block)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
        with self._lock:
            # Closed when both directions are over; the second to come finds the first one's mark.
            for end in (source, sink):
                if end in self._ends:
                    self._ends.remove(end)
                else:
                    end.close()


def _socket_for(address: Address) -> socket.socket:
    return socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
