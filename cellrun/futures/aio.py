"""Run commands and Python functions from asyncio: a thin layer over the executor."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, overload

from cellrun.futures.executor import Executor
from cellrun.futures.jobs import Command
from cellrun.futures.promises import ServerFuture
from cellrun.futures.results import CommandResult

P = ParamSpec("P")
T = TypeVar("T")


class AsyncExecutor:
    """Has the options of Executor. Cancelling a future of asyncio cancels its task.

    The end of the `async with` block waits for all futures; after an exception, which may be the
    cancellation of the task around it, it cancels them.
    """

    def __init__(self, **options: Any) -> None:
        self._executor = Executor(**options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.shutdown(cancel_futures=kind is not None)

    @overload
    async def submit(self, fn: Command | Sequence[str], /) -> "asyncio.Future[CommandResult]": ...

    @overload
    async def submit(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> "asyncio.Future[T]": ...

    async def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> "asyncio.Future[Any]":
        """Submit as `Executor.submit`, waiting without blocking while too many are open."""
        waiting = asyncio.create_task(asyncio.to_thread(self._executor.submit, fn, *args, **kwargs))
        try:
            future = await asyncio.shield(waiting)
        except asyncio.CancelledError:
            # The thread cannot be stopped, and no caller receives its future.
            waiting.add_done_callback(_cancel_result)
            raise
        return asyncio.wrap_future(future)

    async def map(
        self, fn: Callable[..., Any], /, *iterables: Iterable[Any], buffersize: int = 1_000
    ) -> AsyncIterator[Any]:
        """Yield the results of calls in the order of the arguments."""
        arguments = zip(*iterables, strict=False)
        futures: list[asyncio.Future[Any]] = []
        try:
            for found in arguments:
                futures.append(await self.submit(fn, *found))
                if len(futures) >= buffersize:
                    yield await futures.pop(0)
            while futures:
                yield await futures.pop(0)
        finally:
            for future in futures:
                future.cancel()

    async def shutdown(self, *, cancel_futures: bool = False) -> None:
        """Accept no more calls, and wait until all futures are done."""
        # At once: calls of `submit` that wait may have all threads of the event loop.
        self._executor.stop(cancel_futures=cancel_futures)
        await asyncio.to_thread(self._executor.shutdown, wait=True)


def _cancel_result(waiting: "asyncio.Task[ServerFuture[Any]]") -> None:
    if not waiting.cancelled() and waiting.exception() is None:
        waiting.result().cancel()
