"""How a cell process ends: its signal handler waits for nothing."""

import signal
import threading

from workers.service.serving import ShutdownThread


def test_it_leaves_though_the_signal_came_under_a_lock_that_leaving_needs() -> None:
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


def test_nobody_waits_for_one_that_was_not_asked() -> None:
    left = threading.Event()
    leaver = ShutdownThread(left.set)
    leaver.start()
    leaver.join()
    assert not left.is_set()
    leaver.request()
    leaver.join()
    assert left.is_set()
