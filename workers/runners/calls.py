"""Calls of other people's code, few at a time, each for a limited time: one that hangs is left."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import structlog

log = structlog.get_logger(__name__)
T = TypeVar("T")

CALLS_AT_ONCE = 8
# Threads that do not come back hold memory and whatever they wait for.
MAX_LEFT_BEHIND = 64


class CallTimedOut(Exception):
    """The call did not return in time; its thread was left behind."""


class CallsExhausted(Exception):
    """So many calls hang that no other is made."""


class RunnerCalls:
    """Makes calls of one runner for many attempts; each waits for its turn, then for its answer."""

    def __init__(
        self, *, at_once: int = CALLS_AT_ONCE, max_left_behind: int = MAX_LEFT_BEHIND
    ) -> None:
        self._turns = threading.BoundedSemaphore(at_once)
        self._max_left_behind = max_left_behind
        self._lock = threading.Lock()
        self._left_behind = 0

    @property
    def left_behind(self) -> int:
        """How many calls were left and have not returned yet."""
        with self._lock:
            return self._left_behind

    def call(self, what: str, function: Callable[[], T], seconds: float) -> T:
        """What `function` returns or raises. Raises Hung, Exhausted.

        `what` names it in the log. The time counts from the moment in which it is its turn.
        """
        if self.left_behind >= self._max_left_behind:
            raise CallsExhausted(f"{self._max_left_behind} calls of this runner hang on this cell")
        with self._turns:
            made = _RunnerCall(function, self._come_back)
            threading.Thread(target=made.run, name=what, daemon=True).start()
            if made.over.wait(seconds):
                return made.outcome()
            with self._lock:
                if made.leave():
                    self._left_behind += 1
                    log.error("runner_call_hung", call=what, seconds=seconds)
                    raise CallTimedOut(f"it did not return within {seconds:g} s")
        return made.outcome()

    def _come_back(self, made: "_RunnerCall") -> None:
        with self._lock:
            made.over.set()
            if made.is_left:
                self._left_behind -= 1


class _RunnerCall:
    def __init__(
        self, function: Callable[[], Any], on_return: Callable[["_RunnerCall"], None]
    ) -> None:
        self._function = function
        self._on_return = on_return
        self._value: Any = None
        self._error: BaseException | None = None
        self.over = threading.Event()
        self.is_left = False

    def run(self) -> None:
        try:
            self._value = self._function()
        except BaseException as error:  # a runner that calls sys.exit ends no cell either
            self._error = error
        self._on_return(self)

    def leave(self) -> bool:
        """Whether it is left behind: it is not over."""
        self.is_left = not self.over.is_set()
        return self.is_left

    def outcome(self) -> Any:
        if isinstance(self._error, Exception):
            raise self._error
        if self._error is not None:
            raise RuntimeError(f"it raised {type(self._error).__name__}") from self._error
        return self._value
