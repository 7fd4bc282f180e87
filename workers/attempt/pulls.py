"""Image pulls of one cell: one pull of an image at a time, shared by all attempts that wait for it.

A pull without waiting attempts is aborted at its next progress message.
"""

import threading
from collections.abc import Callable

import structlog

from controlplane.contract.messages.launch_context import Registry
from workers.attempt.runtime import Engine, EngineAway, EngineError

log = structlog.get_logger(__name__)


class PullAbandoned(Exception):
    """No attempt waits for the pull any more."""


class Pull:
    """One running pull, in its own thread, so that a waiting attempt can stop waiting."""

    def __init__(self, image: str, registry: Registry | None) -> None:
        self.image = image
        self.registry = registry
        self.bytes = 0  # downloaded
        self.progress: int | None = None
        self.waiting = 0  # how many attempts; guarded by Pulls
        self.error: EngineAway | EngineError | None = None
        self._done = threading.Event()

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds`; return whether the pull is over."""
        return self._done.wait(seconds)

    def run(self, engine: Engine, forget: Callable[["Pull"], None]) -> None:
        """Pull, and record the result."""
        try:
            self.bytes = engine.pull(self.image, self._set_progress, self.registry)
        except (EngineAway, EngineError) as error:
            self.error = error
        except PullAbandoned:
            log.info("pull_cancelled", image=self.image)
        except Exception as error:
            self.error = EngineError(f"{type(error).__name__}: {error}")
        finally:
            forget(self)
            self._done.set()

    def _set_progress(self, percent: int) -> None:
        self.progress = percent
        if not self.waiting:
            # Raised within the engine's answer: closing the connection aborts the pull.
            raise PullAbandoned


class Pulls:
    """The running pulls, by image and credentials: an image may be readable for one user only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._under_way: dict[tuple[str, Registry | None], Pull] = {}

    def join(self, image: str, registry: Registry | None = None) -> Pull:
        """Return the running pull of `image`, or start one; the caller must `leave` it."""
        with self._lock:
            pull = self._under_way.get((image, registry))
            if pull is None:
                pull = self._under_way[image, registry] = Pull(image, registry)
            pull.waiting += 1
            if pull.waiting == 1:
                threading.Thread(
                    target=pull.run,
                    args=(self._engine, self._forget),
                    name=f"pull-{image}",
                    daemon=True,
                ).start()
            return pull

    def leave(self, pull: Pull) -> None:
        """Stop waiting. A pull without waiting attempts accepts no further ones."""
        with self._lock:
            pull.waiting -= 1
            if not pull.waiting:
                self._drop(pull)

    def _forget(self, pull: Pull) -> None:
        with self._lock:
            self._drop(pull)

    def _drop(self, pull: Pull) -> None:
        key = pull.image, pull.registry
        if self._under_way.get(key) is pull:
            del self._under_way[key]
