"""The spawner as a program. Arguments: its own folder, and the folder of the attempts."""

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
    """Serve until the spawner is not needed any more; return 3 if another one runs already."""
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
    listener.bind("socket")  # relative: a socket address is limited to about 100 bytes
    listener.setblocking(False)
    listener.listen()
    if os.fork():
        os._exit(0)  # the child serves
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
