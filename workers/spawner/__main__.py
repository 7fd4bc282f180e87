"""The spawner as a program: `main` with its own folder and that of the attempts."""

import contextlib
import ctypes
import fcntl
import os
import resource
import signal
import socket
import sys

from workers.spawner.loop import Spawner

PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    """Serve until it is not needed any more; 3: another one serves already."""
    folder, work = sys.argv[1:3]
    os.chdir(folder)
    lock = os.open("lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 3
    with contextlib.suppress(FileNotFoundError):
        os.unlink("socket")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("socket")  # by its short name: a path may have some hundred bytes only
    listener.setblocking(False)
    listener.listen()
    if os.fork():
        os._exit(0)  # the starter need not wait for the end of this process
    os.pwrite(lock, b"%d\n" % os.getpid(), 0)
    os.ftruncate(lock, len(str(os.getpid())) + 1)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    spawner = Spawner(work, listener, wake_read)
    spawner.begin()
    spawner.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
