"""Run plain processes without a thread for each, driven by the spawner's reports.

The steps of the pipeline, which do nothing for such tasks, took longer than the tasks. Every
unusual case continues in the pipeline: a failed start, an early stop, output or a result to
collect, the loss of the spawner.
"""

import collections
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog

from controlplane.contract.states import Phase
from workers.attempt.attempt import AttemptRun, DriverClosed, DriverContext
from workers.attempt.events import Launch, always
from workers.attempt.pipeline import START, Step, end_at_once
from workers.attempt.runtime import ContainerStatus, EngineAway
from workers.attempt.threads import Timer
from workers.drivers.process.engine import ProcessEngine
from workers.drivers.process.spawner_client import TaskMirror

log = structlog.get_logger(__name__)

MAX_RUNNING = 4096  # the spawner has two pipes for each
# Unanswered requests to the spawner: about 20 ms of work, and little more than the socket buffer
# holds, so that no thread blocks in a send.
MAX_ORDERED = 48
MAX_ENVIRONMENT = 2048  # characters
FORGET_SECONDS = 0.05  # delay that collects several uids into one message


class PlainProcesses:
    """Attempts on the fast path. Thread-safe.

    `continue_in_pipeline` runs an attempt from the given steps on in a thread; `on_ended` is called
    after the end was reported.
    """

    def __init__(
        self,
        context: DriverContext,
        engine: ProcessEngine,
        timer: Timer,
        continue_in_pipeline: Callable[[AttemptRun, tuple[Step, ...]], None],
        on_ended: Callable[[AttemptRun], None],
    ) -> None:
        self._context = context
        self._engine = engine
        self._timer = timer
        self._continue_in_pipeline = continue_in_pipeline
        self._on_ended = on_ended
        self._lock = threading.Lock()
        self._waiting: collections.OrderedDict[str, AttemptRun] = collections.OrderedDict()
        self._ordered: dict[str, AttemptRun] = {}
        self._running: dict[str, AttemptRun] = {}
        self._watched: set[str] = set()  # attempts whose output is being uploaded
        self._swept: set[str] = set()  # ended attempts without files to remove
        self._forgotten: list[str] = []  # not yet reported to the spawner
        engine.link.subscribe(self)

    def take(self, attempt: AttemptRun) -> bool:
        """Begin the attempt and return True, if the fast path can run it."""
        if not is_plain(attempt.launch) or os.path.exists(attempt.workspace):
            return False
        attempt.is_uncreated = True
        attempt.step_seconds["start"] = -time.monotonic()
        with self._lock:
            self._waiting[attempt.uid] = attempt
        self._send()
        return True

    def withdraw(self, attempt: AttemptRun) -> None:
        """After a stop order, let the pipeline end an attempt that was not sent to the spawner."""
        with self._lock:
            is_waiting = self._waiting.pop(attempt.uid, None) is not None
        if is_waiting:
            self._run_thread(attempt, START)

    def forget(self, uid: str) -> bool:
        """Forget an ended attempt; return False if the caller must remove its files."""
        with self._lock:
            if uid not in self._swept:
                return False
            self._swept.discard(uid)
            self._forgotten.append(uid)
            is_first = len(self._forgotten) == 1
        self._engine.link.drop(uid)
        if is_first:
            self._timer.call_in(FORGET_SECONDS, self._send)
        return True

    def on_begun(self, uid: str, words: list[Any]) -> None:
        """Report RUNNING; after a failed start, retry in the pipeline."""
        with self._lock:
            attempt = self._ordered.pop(uid, None)
            if attempt is not None and words[0] == "running":
                self._running[uid] = attempt
        if attempt is None:
            return
        view = self._engine.view(uid) if words[0] == "running" else None
        if view is None:
            self._run_thread(attempt, START)
            return
        now = time.monotonic()
        attempt.step_seconds["start"] += now
        attempt.step_seconds["wait"] = -now
        try:
            attempt.mark_running(view, None)
        except DriverClosed:
            attempt.log.debug("left_running")

    def on_output(self, uid: str) -> None:
        """Begin to upload the output."""
        attempt = self._running.get(uid)
        if attempt is not None and uid not in self._watched:
            self._watched.add(uid)
            self._context.shipper.watch(uid, attempt.log_folder)

    def on_over(self, uid: str, task: TaskMirror) -> None:
        """Report the end, at once if there is nothing to collect."""
        if task.has_output:
            self.on_output(uid)
        with self._lock:
            attempt = self._running.pop(uid, None)
        if attempt is None:
            return
        attempt.step_seconds["wait"] += time.monotonic()
        self._watched.discard(uid)
        view = self._engine.view(uid)
        has_no_files = task.is_swept and not task.has_output
        if view is None or view.status is not ContainerStatus.ENDED or not has_no_files:
            self._run_thread(attempt, ())
            return
        self._swept.add(uid)
        end_at_once(attempt, view)
        self._on_ended(attempt)

    def on_batch_end(self) -> None:
        """Send waiting attempts after a batch of reports, which may have made room."""
        if self._waiting or self._forgotten:
            self._send()

    def on_hung_up(self) -> None:
        """Continue all attempts in the pipeline, which queries the next spawner."""
        with self._lock:
            ordered, self._ordered = list(self._ordered.values()), {}
            running, self._running = list(self._running.values()), {}
            self._watched.clear()
        for attempt in ordered:
            self._run_thread(attempt, START)
        for attempt in running:
            self._run_thread(attempt, ())
        if self._waiting:
            self._send()

    def _send(self) -> None:
        """Send as many requests as allowed, and the uids to forget."""
        if self._context.closed.is_set():
            return
        with self._lock:
            new: list[AttemptRun] = []
            room = min(MAX_ORDERED, MAX_RUNNING - len(self._running)) - len(self._ordered)
            while self._waiting and len(new) < room:
                uid, attempt = self._waiting.popitem(last=False)
                self._ordered[uid] = attempt
                new.append(attempt)
            forgotten, self._forgotten = self._forgotten, []
        is_connected = self._engine.link.is_connected
        requests: list[list[Any]] = [[0, "forget", uid] for uid in forgotten]
        for attempt in new:
            attempt.may_exist = True
            if is_connected:
                with suppress(DriverClosed):
                    attempt.enter(Phase.CREATING)
            order = self._engine.plain_order(attempt.launch)
            requests.append([0, "begin", attempt.uid, order])
        try:
            if requests and not (is_connected and self._engine.link.send(requests)):
                self._requeue(new, forgotten)
        except EngineAway:
            log.debug("spawner_disconnected")  # `on_hung_up` follows

    def _requeue(self, new: list[AttemptRun], forgotten: list[str]) -> None:
        """Queue attempts again after a failed send: no spawner yet, or its socket is full."""
        is_connected = self._engine.link.is_connected
        with self._lock:
            self._forgotten += forgotten
            kept = [attempt for attempt in new if self._ordered.pop(attempt.uid, None) is not None]
            for attempt in kept:
                attempt.may_exist = False
            if self._ordered or not is_connected:  # an answer, or the connection, triggers a retry
                for attempt in reversed(kept):
                    self._waiting[attempt.uid] = attempt
                    self._waiting.move_to_end(attempt.uid, last=False)
                    with suppress(DriverClosed):
                        attempt.enter(Phase.PREPARING)
                kept = []
        for attempt in kept:
            self._run_thread(attempt, START)
        if new and not is_connected:
            threading.Thread(target=self._connect, name="spawner-wanted", daemon=True).start()

    def _connect(self) -> None:
        try:
            self._engine.link.connect()
        except EngineAway as error:
            log.warning("spawner_unavailable", error=str(error))
            with self._lock:
                waiting, self._waiting = list(self._waiting.values()), collections.OrderedDict()
            for attempt in waiting:
                self._run_thread(attempt, START)
        self._send()

    def _run_thread(self, attempt: AttemptRun, steps: tuple[Step, ...]) -> None:
        attempt.step_seconds.clear()
        if not self._context.closed.is_set():
            self._continue_in_pipeline(attempt, steps)


def is_plain(launch: Launch) -> bool:
    """Return whether the attempt needs only a process, and none of the pipeline's other steps."""
    spec = launch.spec
    return not (
        spec.needs_launch_context
        or spec.inputs
        or spec.result_file  # its folder must be created
        or spec.stdout
        or spec.stderr
        or spec.exclusive
        or launch.permit is not always
        or spec.workdir
        or spec.ports
        or spec.resources.get("gpu")
        or spec.mounts
        or spec.health_check
        or spec.idle_timeout_seconds
        or not (spec.entrypoint or ()) + spec.command
        or sum(map(len, launch.env.values())) > MAX_ENVIRONMENT
        or sum(map(len, spec.command)) > MAX_ENVIRONMENT
    )
