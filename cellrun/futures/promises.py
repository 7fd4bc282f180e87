"""Define the futures: `concurrent.futures.Future` with the address of its task or job."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger("cellrun")

OnCancel = Callable[["ServerFuture[Any]"], None]


class ServerFuture(Future[T]):
    """The result of work on the server. It can be cancelled until it is done.

    `job_id`: None before the submission was accepted. `address`: of the task, or of the job.
    """

    def __init__(self, on_cancel: OnCancel) -> None:
        super().__init__()
        self.job_id: int | None = None
        self.place = ""
        self._has_begun = False
        self._on_cancel = on_cancel

    @property
    def address(self) -> str | None:
        """Return what the command `cellrun` takes: `7/main.0`; None before it has a job."""
        if self.job_id is None:
            return None
        return f"{self.job_id}/{self.place}" if self.place else str(self.job_id)

    def running(self) -> bool:
        """Return whether the task runs, or a task of the job has run."""
        return self._has_begun and not self.done()

    def cancel(self) -> bool:
        """Cancel the work, also if it runs. Return False if it has ended."""
        if not super().cancel():
            return False
        with _CANCEL_LOCK:
            is_first = self._state == "CANCELLED"
            if is_first:
                # Without it, `wait` and `as_completed` do not return the future.
                self.set_running_or_notify_cancel()
        if is_first:
            self._on_cancel(self)
        return True

    def begin(self) -> None:
        """Note that the work has begun."""
        self._has_begun = True

    def resolve(self, result: T) -> None:
        """Set the result, unless the future is cancelled or done."""
        self._settle(lambda: self.set_result(result))

    def reject(self, fault: BaseException) -> None:
        """Set the exception, unless the future is cancelled or done."""
        self._settle(lambda: self.set_exception(fault))

    def _settle(self, change: Callable[[], None]) -> None:
        try:
            change()
        except InvalidStateError:
            return
        except BaseException:  # such as SystemExit, which the standard library does not catch
            log.exception("a callback of the future of %s failed", self.address)


_CANCEL_LOCK = threading.Lock()
