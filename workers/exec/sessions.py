"""The sessions of a cell: one thread each, at most MAX_SESSIONS with a program."""

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import structlog

from controlplane.contract.exec_link import RECONNECT_SECONDS, LinkConnection
from controlplane.contract.messages.orders import ExecOrder
from workers.exec.program import ExecCommand
from workers.exec.session import CellSession, Execute

log = structlog.get_logger(__name__)

MAX_SESSIONS = 32
MAX_REFUSALS = 32  # further threads, which only report why they start no program
MAX_REMEMBERED = 1024  # ended sessions, whose late orders are ignored
CLOSE_SECONDS = 3.0
_NONCE_BYTES = 16


class ExecStarter(Protocol):
    """Starts the sessions that orders name."""

    def begin(self, order: ExecOrder, seconds: float) -> None:
        """Begin a session, unless it was begun. `seconds`: the time in which to claim it."""

    def close(self) -> None:
        """End all sessions with their programs."""


class CellSessions:
    """See ExecStarter. Thread-safe."""

    def __init__(
        self,
        *,
        cell: str,
        connect: Callable[[str, str, int], LinkConnection],
        execute: Execute,
        is_allowed: bool = True,
    ) -> None:
        """`connect` takes session, nonce and the position of the last consumed frame.

        `is_allowed`: False if this host refuses all programs of users.
        """
        self._cell = cell
        self._connect = connect
        self._execute = execute
        self._is_allowed = is_allowed
        self._lock = threading.Lock()
        self._threads: dict[str, threading.Thread] = {}
        self._known: OrderedDict[str, None] = OrderedDict()
        self._closing = threading.Event()

    def begin(self, order: ExecOrder, seconds: float) -> None:
        """Start a thread for the session. Raises nothing."""
        with self._lock:
            is_known = order.session in self._known or self._closing.is_set()
            if is_known or seconds <= 0 or len(self._threads) >= MAX_SESSIONS + MAX_REFUSALS:
                return
            self._known[order.session] = None
            while len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)
            refusal = self._refusal()
            thread = threading.Thread(
                target=self._run,
                args=(order, refusal, min(seconds, RECONNECT_SECONDS)),
                name=f"exec-{order.session}",
                daemon=True,
            )
            self._threads[order.session] = thread
        thread.start()

    def close(self) -> None:
        """End all sessions: their programs get SIGHUP, and SIGKILL soon after."""
        self._closing.set()
        with self._lock:
            threads = list(self._threads.values())
        for thread in threads:
            thread.join(CLOSE_SECONDS)

    @property
    def count(self) -> int:
        """The number of sessions that have not ended."""
        with self._lock:
            return len(self._threads)

    def _refusal(self) -> str:
        if not self._is_allowed:
            return f"cell {self._cell} runs no programs of users (CELLRUN_CELL_EXEC=false)"
        if len(self._threads) >= MAX_SESSIONS:
            return f"cell {self._cell} has {MAX_SESSIONS} sessions already: end one of them"
        return ""

    def _run(self, order: ExecOrder, refusal: str, seconds: float) -> None:
        nonce = secrets.token_hex(_NONCE_BYTES)
        try:
            CellSession(
                ExecCommand(order.uid, order.command, order.tty, order.stdin),
                lambda after: self._connect(order.session, nonce, after),
                self._execute,
                log.bind(cell=self._cell, attempt=order.uid, session=order.session),
                refusal=refusal,
                claim_seconds=seconds,
                size=(order.rows, order.columns),
                closing=self._closing,
            ).run()
        finally:
            with self._lock:
                self._threads.pop(order.session, None)
