"""Call runners, a few calls at a time, each with a timeout; abandon threads of hanging calls."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import structlog

log = structlog.get_logger(__name__)
T = TypeVar("T")

CALLS_AT_ONCE = 8
# Abandoned threads hold memory and other resources.
MAX_ABANDONED = 64


class CallTimedOut(Exception):
    """The call did not return in time; its thread was abandoned."""


class CallsExhausted(Exception):
    """Too many calls hang: no other is made."""


class RunnerCalls:
    """Calls one runner for many attempts; each call waits for its turn, then for its result."""

    def __init__(self, *, at_once: int = CALLS_AT_ONCE, max_abandoned: int = MAX_ABANDONED) -> None:
        self._turns = threading.BoundedSemaphore(at_once)
        self._max_abandoned = max_abandoned
        self._lock = threading.Lock()
        self._abandoned = 0

    @property
    def abandoned(self) -> int:
        """The number of abandoned calls that have not returned yet."""
        with self._lock:
            return self._abandoned

    def call(self, what: str, function: Callable[[], T], seconds: float) -> T:
        """Call `function`, and return or raise its result. Raise CallTimedOut, CallsExhausted.

        `what` names the call in the log. The timeout starts when it is its turn.
        """
        if self.abandoned >= self._max_abandoned:
            raise CallsExhausted(f"{self._max_abandoned} calls of this runner hang on this cell")
        with self._turns:
            runner_call = _RunnerCall(function, self._handle_return)
            threading.Thread(target=runner_call.run, name=what, daemon=True).start()
            if runner_call.over.wait(seconds):
                return runner_call.outcome()
            with self._lock:
                if runner_call.abandon():
                    self._abandoned += 1
                    log.error("runner_call_hung", call=what, seconds=seconds)
                    raise CallTimedOut(f"it did not return within {seconds:g} s")
        return runner_call.outcome()

    def _handle_return(self, runner_call: "_RunnerCall") -> None:
        with self._lock:
            runner_call.over.set()
            if runner_call.is_abandoned:
                self._abandoned -= 1


class _RunnerCall:
    def __init__(
        self, function: Callable[[], Any], on_return: Callable[["_RunnerCall"], None]
    ) -> None:
        self._function = function
        self._on_return = on_return
        self._value: Any = None
        self._error: BaseException | None = None
        self.over = threading.Event()
        self.is_abandoned = False

    def run(self) -> None:
        try:
            self._value = self._function()
        except BaseException as error:  # also sys.exit: it must not end the cell
            self._error = error
        self._on_return(self)

    def abandon(self) -> bool:
        """Abandon the call unless it has returned; return whether it is abandoned."""
        self.is_abandoned = not self.over.is_set()
        return self.is_abandoned

    def outcome(self) -> Any:
        if isinstance(self._error, Exception):
            raise self._error
        if self._error is not None:
            raise RuntimeError(f"it raised {type(self._error).__name__}") from self._error
        return self._value
