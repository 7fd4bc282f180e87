"""Send the standard input to a container through the engine.

The engine closes the input when the connection ends; it cannot distinguish the end of the file from
the death of this process. So the file `stdin` in the workspace records that all of it was sent. An
attempt whose input was cut off fails, because the program may have taken it for complete.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from controlplane.contract.states import FailureKind
from workers.attempt.attempt import AttemptRun, DriverClosed
from workers.attempt.outcome import INPUTS, AttemptFailed
from workers.attempt.runtime import ContainerStatus, ContainerView, EngineAway, EngineError

PIECE_BYTES = 256 * 1024
CHECK_SECONDS = 0.5  # between checks for the end while the program reads nothing
END_SECONDS = 10.0  # after the end of the program, for the thread to end
BEGUN, SENT = "begun", "sent"
_CUT_OFF = "stdin: the connection to the engine ended before the program had all of its input"


@contextmanager
def open_stdin(attempt: AttemptRun) -> Iterator[None]:
    """Connect to the standard input of the created container; begin to send when the block ends.

    The block starts the container: until then the engine closes the connection of an empty input,
    which is no different from a restart of the engine. A second connection would be useless,
    because the end of the first one closes the input. Raise AttemptFailed.
    """
    path = attempt.launch.spec.stdin
    if path is None or not attempt.engine.feeds_stdin:
        yield
        return
    source = next(item.source for item in attempt.placed if item.path == path and item.source)
    _state_file(attempt).write_text(BEGUN, encoding="ascii")
    with ExitStack() as stack:
        try:
            with attempt.turn():
                connection = stack.enter_context(attempt.engine.stdin(attempt.uid))
        except (EngineAway, EngineError) as error:
            raise AttemptFailed(FailureKind.SYSTEM, INPUTS, f"stdin: {error}") from error
        connection.settimeout(CHECK_SECONDS)
        yield
        ends = stack.pop_all()
    attempt.feed = threading.Thread(
        target=_feed,
        args=(attempt, source, connection, ends),
        name=f"stdin-{attempt.uid}",
        daemon=True,
    )
    attempt.feed.start()


def check_unfed(attempt: AttemptRun, view: ContainerView) -> None:
    """Raise AttemptFailed if an earlier process of the cell ended while it sent the input."""
    if attempt.launch.spec.stdin is None or not attempt.engine.feeds_stdin:
        return
    if _state(attempt) != (None if view.status is ContainerStatus.CREATED else SENT):
        raise AttemptFailed(FailureKind.SYSTEM, INPUTS, _CUT_OFF)


def check_fed(attempt: AttemptRun) -> None:
    """Raise AttemptFailed if the ended program did not have all of its input."""
    if attempt.feed is not None:
        attempt.feed.join(END_SECONDS)
    needs_feed = attempt.launch.spec.stdin is not None and attempt.engine.feeds_stdin
    if needs_feed and attempt.stopped_for is None and _state(attempt) != SENT:
        raise AttemptFailed(FailureKind.SYSTEM, INPUTS, _CUT_OFF)


def _feed(attempt: AttemptRun, source: Path, connection: socket.socket, ends: ExitStack) -> None:
    """Send the file; kill the program if its input is cut off."""
    try:
        with ends, open(source, "rb") as file:
            is_over = _send(attempt, file, connection)
        if is_over or _has_closed_its_input(attempt):
            _note_sent(attempt)
            return
    except DriverClosed:
        return
    except Exception:  # the attempt fails at its end
        attempt.log.exception("stdin_not_sent")
    _kill(attempt)


def _send(attempt: AttemptRun, file: BinaryIO, connection: socket.socket) -> bool:
    """Send the file; return whether the program has ended, before the engine disconnected."""
    while piece := file.read(PIECE_BYTES):
        rest = memoryview(piece)
        while rest:
            try:
                rest = rest[connection.send(rest) :]
            except TimeoutError:
                if _is_over(attempt):
                    return True
            except OSError:
                return False
    try:
        connection.shutdown(socket.SHUT_WR)
        # The engine closes the connection when it has passed on everything, or when it is killed.
        while True:
            with suppress(TimeoutError):
                if not connection.recv(1):
                    return False
            if _is_over(attempt):
                return True
    except OSError:
        return False


def _is_over(attempt: AttemptRun) -> bool:
    if attempt.context.closed.is_set():
        raise DriverClosed
    return attempt.ended


def _has_closed_its_input(attempt: AttemptRun) -> bool:
    """Return whether an engine that still works closed the connection: the program reads no more.

    It has the whole file, or has closed its input. A restarting engine does not answer at once.
    """
    try:
        view = attempt.engine.view(attempt.uid)
    except (EngineAway, EngineError):
        return False
    return view is None or view.status is not ContainerStatus.CREATED


def _kill(attempt: AttemptRun) -> None:
    """Kill the program, however long the engine does not answer."""
    while not (attempt.ended or attempt.context.closed.is_set()):
        with suppress(EngineAway, EngineError):
            if attempt.engine.signal(attempt.uid, "KILL"):
                return
        attempt.over.wait(CHECK_SECONDS)


def _note_sent(attempt: AttemptRun) -> None:
    draft = _state_file(attempt).with_suffix(".new")
    draft.write_text(SENT, encoding="ascii")
    draft.replace(_state_file(attempt))


def _state(attempt: AttemptRun) -> str | None:
    try:
        return _state_file(attempt).read_text(encoding="ascii")
    except FileNotFoundError:
        return None


def _state_file(attempt: AttemptRun) -> Path:
    return attempt.workspace / "stdin"
