"""Restart the process when its key file has another key, which the control plane accepts.

A restart is the way in which all of a process takes the new key: messages, requests, and the
logins at Redis. Running attempts continue and are adopted by the new process.
"""

import threading
from collections.abc import Callable

import structlog

from workers.config import CellConfig, read_key
from workers.control_api import ControlPlaneRefused, ControlPlaneUnavailable, Web

log = structlog.get_logger(__name__)

POLL_SECONDS = 5.0
"""A renewed key is found and taken within a lease."""

MAX_SKIPPED_POLLS = 11
"""A key that is not accepted is tried again after 5 s, 10 s, 20 s, and so on up to a minute."""


class KeyWatch:
    """Reads the key file periodically, in its own thread."""

    def __init__(
        self,
        config: CellConfig,
        on_new_key: Callable[[], None],
        *,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._config = config
        self._on_new_key = on_new_key
        self._poll_seconds = poll_seconds
        self._refused = b""
        self._polls_to_skip = self._next_pause = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="key-watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop reading."""
        self._closed.set()

    def check(self) -> bool:
        """Return whether the file has another key, which the control plane accepts.

        With a key that it refuses, a new process could do nothing.
        """
        try:
            key = read_key(self._config.key_file)
        except (OSError, ValueError):
            return False  # it is being written
        if key == self._config.key:
            return False
        if key == self._refused and self._polls_to_skip:
            self._polls_to_skip -= 1
            return False
        web = Web(control_url=self._config.control_url, cell=self._config.name, key=key)
        try:
            web.check_key()
        except (ControlPlaneRefused, ControlPlaneUnavailable) as error:
            self._note_refusal(key, error)
            return False
        finally:
            web.close()
        return True

    def _note_refusal(self, key: bytes, error: Exception) -> None:
        if key != self._refused:
            log.warning("new_key_not_accepted", cell=self._config.name, error=str(error))
            self._refused, self._next_pause = key, 0
        self._polls_to_skip = self._next_pause
        self._next_pause = min(2 * self._next_pause + 1, MAX_SKIPPED_POLLS)

    def _run(self) -> None:
        while not self._closed.wait(self._poll_seconds):
            try:
                if self.check():
                    log.info("key_changed", cell=self._config.name)
                    self._on_new_key()
            except Exception:  # the next check follows, whatever the error
                log.exception("key_check_failed", cell=self._config.name)
