"""The terminal of the user while a program in a task has it: raw mode, size, signals."""

import os
import queue
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

Handler = Callable[[int, FrameType | None], None]
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def reserve_standard_streams() -> None:
    """Open /dev/null in place of closed standard streams, before a socket gets their numbers."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
    # Python sets a stream to None if its descriptor was closed at the start.
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def is_tty(descriptor: int) -> bool:
    """Return whether a descriptor is a terminal."""
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def size_of_terminal() -> tuple[int, int] | None:
    """Return the rows and columns of the terminal; None: there is none."""
    for descriptor in (0, 1, 2):
        with suppress(OSError):
            size = os.get_terminal_size(descriptor)
            return size.lines, size.columns
    return None


@contextmanager
def raw_mode(descriptor: int) -> Iterator[None]:
    """Pass on every key unchanged; restore the terminal in all cases."""
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor, termios.TCSADRAIN)
        yield
    finally:
        # Not after the output has drained: a paused terminal would block.
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Turn signals that end a process into SystemExit, so that contexts are left."""

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    with _handlers(dict.fromkeys(ENDING, leave)):
        yield


@contextmanager
def forwarded_signals(events: "queue.SimpleQueue[int]", *, interrupts: bool) -> Iterator[None]:
    """Queue changes of the terminal's size, and with `interrupts` the first Ctrl-C.

    The second one raises KeyboardInterrupt.
    """
    interrupted = 0

    def note(number: int, _: FrameType | None) -> None:
        nonlocal interrupted
        if number == signal.SIGINT:
            interrupted += 1
            if interrupted > 1:
                raise KeyboardInterrupt
        events.put(number)

    handlers: dict[int, Handler] = {signal.SIGWINCH: note}
    if interrupts:
        handlers[signal.SIGINT] = note
    with _handlers(handlers):
        yield


@contextmanager
def _handlers(handlers: dict[int, Handler]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
