"""How a cell process begins and ends: alone in its home, and without a deadlock at a signal."""

import os
import signal
import threading
from pathlib import Path

from workers.service.serving import ShutdownThread, _lock_journal


def test_signal_under_a_held_lock_does_not_deadlock_the_shutdown() -> None:
    lock, left = threading.Lock(), threading.Event()

    def leave() -> None:
        with lock:
            assert not left.is_set()
            left.set()

    leaver = ShutdownThread(leave)
    leaver.start()
    before = signal.signal(signal.SIGUSR1, lambda *_: leaver.request())
    try:
        with lock:
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR1)
            assert not left.is_set()
    finally:
        signal.signal(signal.SIGUSR1, before)
    leaver.join()
    assert left.is_set()


def test_join_returns_at_once_without_a_shutdown_request() -> None:
    left = threading.Event()
    leaver = ShutdownThread(left.set)
    leaver.start()
    leaver.join()
    assert not left.is_set()
    leaver.request()
    leaver.join()
    assert left.is_set()


def test_one_process_at_a_time_runs_in_the_home_of_a_cell(tmp_path: Path) -> None:
    """Two would write to one journal."""
    path = tmp_path / "journal.lock"
    first = _lock_journal(path)
    assert first is not None
    assert _lock_journal(path) is None
    os.close(first)
    successor = _lock_journal(path)
    assert successor is not None
    os.close(successor)
