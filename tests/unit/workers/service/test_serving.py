"""How a cell process ends: its signal handler waits for nothing."""

import signal
import threading

from workers.service.serving import ShutdownThread


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
