"""Run commands and Python functions on the installation, as an executor of `concurrent.futures`."""

import concurrent.futures
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, overload

from cellrun.errors import BadInput
from cellrun.futures import functions
from cellrun.futures.bundles import Bundle, PendingCall, bundle_calls, shape_of
from cellrun.futures.jobs import Command, program_of
from cellrun.futures.program import LINGER_SECONDS, Client
from cellrun.futures.promises import ServerFuture
from cellrun.futures.results import CommandResult
from cellrun.futures.threads import is_client_thread
from cellrun.settings import ClientSettings

P = ParamSpec("P")
T = TypeVar("T")

MAX_IN_FLIGHT = 8_000
"""Below 16,000, the unfinished tasks that a user may have."""
TASKS_PER_JOB = 500


class Executor(concurrent.futures.Executor):
    """Runs each call as one task. Without an image, tasks are plain processes of the cells.

    Calls that are submitted within some milliseconds share a job of up to `tasks_per_job` tasks.
    `submit` waits while `max_in_flight` futures are open. `group` and `job` are further fields as
    in docs/job-spec.md. After Ctrl-C, the end of the `with` block cancels what is open, unless
    `leave_running` is set.
    """

    def __init__(
        self,
        settings: ClientSettings | None = None,
        *,
        client: Client | None = None,
        name: str = "python",
        project: str | None = None,
        pool: str | None = None,
        image: str | None = None,
        python: str = "python3",
        env: Mapping[str, str] | None = None,
        resources: Mapping[str, Any] | None = None,
        retries: Mapping[str, int] | None = None,
        group: Mapping[str, Any] | None = None,
        job: Mapping[str, Any] | None = None,
        tasks_per_job: int = TASKS_PER_JOB,
        max_in_flight: int = MAX_IN_FLIGHT,
        linger_seconds: float = LINGER_SECONDS,
        leave_running: bool = False,
    ) -> None:
        if not (1 <= tasks_per_job <= 10_000 and max_in_flight >= 1):
            raise BadInput("tasks_per_job is from 1 to 10,000, and max_in_flight at least 1")
        if client is not None and (settings is not None or project is not None):
            raise BadInput("a client has settings and a project: leave them out here")
        self._owns_client = client is None
        self._client = client or Client(settings, project=project, linger_seconds=linger_seconds)
        parts = {"env": env, "resources": resources}
        present = {field: dict(value) for field, value in parts.items() if value}
        self._group = {**program_of(image), **present, **(group or {})}
        options = {"pool": pool, "retries": retries}
        chosen = {field: value for field, value in options.items() if value is not None}
        self._job = {"name": name, **chosen, **(job or {}), **self._client.place()}
        self._function_shape = shape_of(
            {**self._group, **functions.group_of_function(python)},
        )
        self._tasks_per_job, self._max_in_flight = tasks_per_job, max_in_flight
        self._leave_running = leave_running
        self._changed = threading.Condition()
        self._open: set[ServerFuture[Any]] = set()
        self._is_closed = False

    @overload
    def submit(self, fn: Command | Sequence[str], /) -> ServerFuture[CommandResult]: ...

    @overload
    def submit(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> ServerFuture[T]: ...

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> ServerFuture[Any]:
        """Submit a command line, a Command or a function; wait while too many are open.

        In a callback of a future, it does not wait.

        Raise RuntimeError after `shutdown`; BadInput for what cannot be sent.
        """
        future: ServerFuture[Any] = ServerFuture(self._client.withdraw)
        call = self._call_of(future, fn, args, kwargs)
        future.add_done_callback(self._forget)
        try:
            with self._changed:
                if len(self._open) >= self._max_in_flight and not is_client_thread():
                    # Then room for many, so that they share jobs.
                    room = max(self._max_in_flight * 3 // 4, 1)
                    self._changed.wait_for(lambda: len(self._open) < room or self._is_closed)
                if self._is_closed:
                    raise RuntimeError("cannot schedule new futures after shutdown")
                self._open.add(future)
            self._client.put(call, self._bundle)
        except BaseException:  # also Ctrl-C
            self._forget(future)
            raise
        return future

    def map(
        self,
        fn: Callable[..., Any],
        /,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[Any]:
        """Yield the results of calls in the order of the arguments, as the standard library does.

        At most `buffersize` calls (default: `max_in_flight`) are submitted ahead of the results, so
        that endless arguments are possible. `chunksize` has no effect: each call is one task. For
        command lines, pass `Command` as `fn`.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        ahead = self._max_in_flight if buffersize is None else buffersize
        if ahead < 1:
            raise ValueError("buffersize must be at least 1")
        arguments = zip(*iterables, strict=False)
        return self._results(fn, arguments, deadline, ahead, self._fill(fn, arguments, ahead))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls. `cancel_futures` also cancels those that run.

        With `wait`, return when all futures are done and what was cancelled is cancelled on the
        server. Without it, this happens in the background as long as the program runs.
        """
        self.stop(cancel_futures=cancel_futures)
        if wait:
            self._finish()
        else:
            threading.Thread(target=self._finish, name="cellrun-shutdown", daemon=True).start()

    def stop(self, *, cancel_futures: bool = False) -> None:
        """Accept no more calls, without waiting. The client is closed by `shutdown` only."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if cancel_futures:
            self._cancel_all()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self._interrupt()
            return None
        try:
            self.shutdown(wait=True)
        except KeyboardInterrupt:
            self._interrupt()
            raise
        return None

    def _interrupt(self) -> None:
        """Cancel what is open, or leave it; either way end soon."""
        self._is_closed = True
        if not self._leave_running:
            self.shutdown(wait=True, cancel_futures=True)
        elif self._owns_client:
            self._client.close()

    def _finish(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._open)
        if self._owns_client:
            self._client.close()

    def _cancel_all(self) -> None:
        with self._changed:
            found = list(self._open)
        for future in found:
            future.cancel()

    def _forget(self, future: concurrent.futures.Future[Any]) -> None:
        with self._changed:
            self._open.discard(future)
            if len(self._open) in (0, self._max_in_flight * 3 // 4 - 1):
                self._changed.notify_all()

    def _bundle(self, calls: Sequence[PendingCall]) -> Iterator[Bundle]:
        return bundle_calls(calls, self._job, most_tasks=self._tasks_per_job)

    def _call_of(
        self, future: ServerFuture[Any], fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> PendingCall:
        if fn is Command:
            fn, args, kwargs = Command(*args, **kwargs), (), {}
        if callable(fn):
            packed = functions.pack_function(fn)
            call = functions.pack_call(args, kwargs)
            return PendingCall(future, self._function_shape, packed, call)
        if args or kwargs:
            raise BadInput("a command line takes no further arguments: add them to its list")
        command = fn if isinstance(fn, Command) else Command(fn)
        result = {} if command.result else {"result_file": None}
        group = {**self._group, **result, "command": list(command.words), **command.fields}
        if command.env:
            group["env"] = {**self._group.get("env", {}), **command.env}
        return PendingCall(future, shape_of(group))

    def _fill(
        self, fn: Any, arguments: Iterator[tuple[Any, ...]], most: int
    ) -> deque[ServerFuture[Any]]:
        """Submit calls as far as none has to wait; the others follow the results."""
        futures: deque[ServerFuture[Any]] = deque()
        while len(futures) < most:
            found = next(arguments, None)
            if found is None:
                break
            futures.append(self.submit(fn, *found))
        return futures

    def _results(
        self,
        fn: Any,
        arguments: Iterator[tuple[Any, ...]],
        deadline: float | None,
        ahead: int,
        futures: deque[ServerFuture[Any]],
    ) -> Iterator[Any]:
        try:
            while futures:
                left = None if deadline is None else deadline - time.monotonic()
                future = futures.popleft()
                try:
                    yield future.result(left)
                finally:
                    future.cancel()
                futures.extend(self._fill(fn, arguments, ahead - len(futures)))
        finally:
            for future in futures:
                future.cancel()
