"""The connection to a cell's spawner: sends requests, and mirrors the facts of its tasks.

The first connection starts the spawner; cell and guard may use it at the same time. When it hangs
up, all waiting threads wake, and the next request starts another spawner, which kills the tasks of
its predecessor before it answers.
"""

import contextlib
import itertools
import json
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import workers
from workers.attempt.runtime import EngineAway

READY_SECONDS = 20.0  # for the start of a spawner, or an answer, on a machine under load
POLL_SECONDS = 0.01  # between tries to connect to a starting spawner
LOCK_SECONDS = 0.2  # to wait for another thread whose send blocks
BLOCK_BYTES = 262144
LOG_TAIL_BYTES = 1024
SEND_TIMEOUT = struct.pack("@ll", int(READY_SECONDS), 0)  # a struct timeval
PACKAGES = Path(workers.__file__).parents[1]
PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1));"
    " from workers.spawner.__main__ import main; sys.exit(main())"
)
ALREADY_RUNNING = 3  # exit code of a spawner if another one serves its folder
OPTIONS = ("-I", "-S", "-X", "utf8", "-c", PROGRAM)  # no site-packages


class RequestPending(EngineAway):
    """The spawner is connected, but has not carried out the request yet."""


@dataclass(slots=True)
class TaskMirror:
    """A task as the spawner last reported it. `news`: it has ended, or the spawner hung up."""

    pid: int
    mark: int  # start time in kernel ticks; it differs for a later process of the same pid
    began_at: float | None
    is_over: bool
    code: int | None
    ended_at: float | None
    cpu_seconds: float
    peak_bytes: int
    has_output: bool
    is_swept: bool  # its folder was empty, and is removed
    news: threading.Event = field(default_factory=threading.Event)


class SpawnerResponse:
    """The response to one request."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.words: list[Any] | None = None  # None: the spawner hung up


class SpawnerListeners(Protocol):
    """Receives the spawner's reports, called from the one thread that reads."""

    def on_begun(self, uid: str, words: list[Any]) -> None:
        """Receive the answer to a "begin"."""

    def on_output(self, uid: str) -> None:
        """Receive that a task has written its first output."""

    def on_over(self, uid: str, task: TaskMirror) -> None:
        """Receive that a task has ended."""

    def on_batch_end(self) -> None:
        """Receive that no further report is waiting."""

    def on_hung_up(self) -> None:
        """Receive that the connection to the spawner has ended."""


class SpawnerLink:
    """Thread-safe; every call raises EngineAway if no spawner can be started."""

    def __init__(self, home: Path) -> None:
        self._folder = home.absolute() / "spawner"
        self._work = home.absolute() / "work"
        self._connecting = threading.Lock()
        self._lock = threading.Lock()  # never held while waiting for an answer
        self._connection: socket.socket | None = None
        self._tasks: dict[str, TaskMirror] = {}
        self._answers: dict[int, SpawnerResponse] = {}
        self._numbers = itertools.count(1)
        self._is_closed = False
        self._listener: SpawnerListeners | None = None

    def subscribe(self, listener: SpawnerListeners) -> None:
        """Add a receiver, before the first request."""
        self._listener = listener

    def connect(self) -> None:
        """Connect to the spawner, and start one if there is none."""
        self._connect()

    @property
    def is_connected(self) -> bool:
        """Whether the connection is open, as far as is known."""
        return self._connection is not None

    def send(self, requests: list[list[Any]]) -> bool:
        """Send requests without waiting for answers; False: not possible at once."""
        text = b"".join(json.dumps(request).encode() + b"\n" for request in requests)
        if not self._lock.acquire(timeout=LOCK_SECONDS):
            return False
        try:
            connection = self._connection
            if connection is None or not _is_writable(connection):
                return False
            try:
                connection.sendall(text)
            except OSError as error:
                _hang_up(connection)
                raise EngineAway(f"the spawner hung up: {error}") from error
        finally:
            self._lock.release()
        return True

    def drop(self, uid: str) -> None:
        """Forget a task that has ended; the caller sends the request to the spawner."""
        with self._lock:
            self._tasks.pop(uid, None)

    def find(self, uid: str) -> TaskMirror | None:
        """Return the task; None: it has not begun."""
        self._connect()
        return self._tasks.get(uid)

    def known(self) -> list[tuple[str, TaskMirror]]:
        """Return all tasks that are not forgotten."""
        self._connect()
        with self._lock:
            return list(self._tasks.items())

    def call(self, verb: str, uid: str) -> list[Any]:
        """Send a request, and return the answer: a word and its arguments."""
        answer, number = SpawnerResponse(), next(self._numbers)
        request = json.dumps([number, verb, uid]).encode() + b"\n"
        connection = self._connect()
        with self._lock:
            if self._connection is not connection:
                raise EngineAway("the spawner hung up")
            self._answers[number] = answer
            try:
                connection.sendall(request)
            except OSError as error:
                self._answers.pop(number, None)
                _hang_up(connection)  # half a request may have been sent
                raise EngineAway(f"the spawner hung up: {error}") from error
        is_answered = answer.arrived.wait(READY_SECONDS)
        with self._lock:
            self._answers.pop(number, None)
        if not is_answered:
            raise RequestPending("the spawner does not answer")
        if answer.words is None:
            raise EngineAway("the spawner hung up")
        return answer.words

    def forget(self, uid: str) -> None:
        """Forget a task that has ended, here and in the spawner, without waiting for an answer."""
        connection = self._connect()
        with self._lock:
            self._tasks.pop(uid, None)
            try:
                connection.sendall(json.dumps([0, "forget", uid]).encode() + b"\n")
            except OSError as error:
                _hang_up(connection)
                raise EngineAway(f"the spawner hung up: {error}") from error

    def close(self) -> None:
        """Close the connection; a spawner without tasks and connections ends."""
        with self._lock:
            self._is_closed = True
            connection = self._connection
        if connection is not None:
            _hang_up(connection)

    def _connect(self) -> socket.socket:
        connection = self._connection
        if connection is not None:
            return connection
        with self._connecting:
            if self._connection is not None:
                return self._connection
            if self._is_closed:
                raise EngineAway("the link to the spawner was closed")
            try:
                connection, rest = self._open_greeted()
            except OSError as error:
                raise EngineAway(f"the spawner cannot be started: {error}") from error
            with self._lock:
                self._connection = connection
            threading.Thread(
                target=self._listen, args=(connection, rest), name="spawner", daemon=True
            ).start()
            return connection

    def _open_greeted(self) -> tuple[socket.socket, bytes]:
        """Open a connection and read its greeting; return both it and the bytes that followed."""
        end = time.monotonic() + READY_SECONDS
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        while (rest := end - time.monotonic()) > 0:
            connection = self._open()
            if connection is not None:
                text = _read_line(connection, rest)
                if text is not None:
                    greeting, _, after = text.partition(b"\n")
                    self._mirror_all(json.loads(greeting))
                    return connection, after
                connection.close()
            else:
                self._start()
                time.sleep(POLL_SECONDS)
        raise EngineAway("the spawner does not start")

    def _open(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX)
        # A hanging spawner must not block all requests.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, SEND_TIMEOUT)
        # A socket address is limited to about 100 bytes, a path is not.
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            connection.connect(f"/proc/self/fd/{folder}/socket")
        except OSError:
            connection.close()
            return None
        finally:
            os.close(folder)
        return connection

    def _start(self) -> None:
        """Start a spawner. Raise EngineAway, with the last line of its log, if it cannot run."""
        with open(self._folder / "log", "ab") as errors:
            process = subprocess.Popen(
                [sys.executable, *OPTIONS, str(PACKAGES), str(self._folder), str(self._work)],
                env={},  # the cell's environment contains secrets
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                cwd="/",
            )
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(READY_SECONDS)
            if code > 0 and code != ALREADY_RUNNING:
                text = (
                    (self._folder / "log").read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
                )
                line = text.strip().rpartition("\n")[2]
                raise EngineAway(f"the spawner ended with exit code {code}: {line}")

    def _listen(self, connection: socket.socket, rest: bytes) -> None:
        """Read the spawner's messages until it hangs up."""
        while True:
            *lines, rest = rest.split(b"\n")
            for line in lines:
                self._take(json.loads(line))
            if self._listener is not None:
                self._listener.on_batch_end()
            try:
                block = connection.recv(BLOCK_BYTES)
            except OSError:
                block = b""
            if not block:
                break
            rest += block
        with self._lock:
            self._connection = None
            answers, self._answers = list(self._answers.values()), {}
            tasks = list(self._tasks.values())
        connection.close()
        for answer in answers:
            answer.arrived.set()
        for task in tasks:
            task.news.set()
        if self._listener is not None:
            self._listener.on_hung_up()

    def _take(self, message: list[Any]) -> None:
        if message[0] == "fact":
            with self._lock:
                task = self._mirror(message[1])
            if task.is_over:
                task.news.set()
                if self._listener is not None:
                    self._listener.on_over(message[1][0], task)
            return
        if message[0] == "begun":
            if message[2] == "running":
                with self._lock:
                    self._mirror(message[3])
            if self._listener is not None:
                self._listener.on_begun(message[1], message[2:])
            return
        if message[0] == "output":
            if self._listener is not None:
                self._listener.on_output(message[1])
            return
        if message[0] == "forget":
            with self._lock:
                self._tasks.pop(message[1], None)
            return
        answer = self._answers.get(message[1])
        if message[2] == "running":
            with self._lock:
                self._mirror(message[3])
        if answer is not None:
            answer.words = message[2:]
            answer.arrived.set()

    def _mirror_all(self, greeting: list[Any]) -> None:
        with self._lock:
            self._tasks = {}
            for facts in greeting[1]:
                task = self._mirror(facts)
                if task.is_over:
                    task.news.set()

    def _mirror(self, facts: list[Any]) -> TaskMirror:
        uid, pid, mark, began_at, *rest = facts
        task = self._tasks.get(uid)
        if task is None:
            task = self._tasks[uid] = TaskMirror(pid, mark, began_at, *rest)
        else:
            task.code, task.ended_at, task.cpu_seconds, task.peak_bytes = rest[1:5]
            task.has_output, task.is_swept = rest[5:]
            task.is_over = rest[0]
        return task


def _is_writable(connection: socket.socket) -> bool:
    """Return whether a few requests can be sent without blocking."""
    poller = select.poll()
    poller.register(connection, select.POLLOUT)
    return bool(poller.poll(0))


def _hang_up(connection: socket.socket) -> None:
    """Shut down the socket, so that the reading thread gets the end of file."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _read_line(connection: socket.socket, seconds: float) -> bytes | None:
    """Return a line, and the bytes received with it; None: end of file or timeout."""
    text = b""
    poller = select.poll()  # select() is limited to descriptors below 1024
    poller.register(connection, select.POLLIN)
    end = time.monotonic() + seconds
    while b"\n" not in text:
        if not poller.poll(max(0, int(1000 * (end - time.monotonic())))):
            return None
        try:
            block = connection.recv(BLOCK_BYTES)
        except ConnectionResetError:
            return None
        if not block:
            return None
        text += block
    return text
