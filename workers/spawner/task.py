"""One task: its facts, and the copying of its output to the log files."""

import contextlib
import errno
import os
import resource
from typing import Any, Self

from workers.spawner.client import SpawnerClient

PIPE_BYTES = 65536
Facts = list[Any]


class StreamCopy:
    """Copies one stream of a task to its file up to the limit; without output there is no file."""

    def __init__(
        self, task: "SpawnedTask", order: dict[str, Any], name: str, descriptor: int
    ) -> None:
        self.task = task
        self.folder: str = order["logs"]
        self.name = name
        self.descriptor = descriptor
        self.file = -1
        self.remaining: int = order["max_log_bytes"]
        self.cut_note: bytes = order["cut_note"].encode()
        self.is_cut = False
        os.set_blocking(descriptor, False)

    def copy(self) -> bool:
        """Copy available output, a block at most; return False if there is no more now."""
        try:
            block = os.read(self.descriptor, PIPE_BYTES)
        except BlockingIOError:
            return False
        if block and not self.is_cut:
            self._keep(block)
        return bool(block)

    def _keep(self, block: bytes) -> None:
        kept = block[: self.remaining]
        self.remaining -= len(kept)
        if len(kept) < len(block):
            self.is_cut = True
            kept += self.cut_note
        try:
            if self.file < 0:
                os.makedirs(self.folder, exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                self.file = os.open(f"{self.folder}/{self.name}", flags, 0o644)
            if os.write(self.file, kept) < len(kept):
                raise OSError(errno.ENOSPC, "")
        except OSError:
            self.is_cut = True  # a full disk must not stop the task
            with contextlib.suppress(OSError):
                os.close(os.open(f"{self.folder}/incomplete", os.O_CREAT, 0o644))

    def close(self) -> None:
        """Copy the rest of the output and close, also if a process still has the pipe open."""
        for _ in range(1 + 2**20 // PIPE_BYTES):  # the maximum size of a pipe
            if not self.copy():
                break
        os.close(self.descriptor)
        if self.file >= 0:
            os.close(self.file)


class SpawnedTask:
    """The state of one task."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.pid = 0
        self.mark = 0  # start time of its first process, in kernel ticks
        self.began_at: float | None = None
        self.is_over = False
        self.code: int | None = None
        self.ended_at: float | None = None
        self.cpu_seconds = 0.0
        self.peak_bytes = 0
        self.root = b""
        self.has_output = False
        self.folder: str | None = None  # if the spawner created it
        self.is_swept = False  # the folder was empty at the end, and is removed
        self.logs: list[StreamCopy] = []
        self.waiters: list[
            tuple[SpawnerClient, int]
        ] = []  # connections and requests to answer when it is forgotten

    def facts(self) -> Facts:
        """Return the facts as they are reported and recorded."""
        began = [self.uid, self.pid, self.mark, self.began_at]
        cpu_seconds = round(self.cpu_seconds, 6)
        ended = [self.is_over, self.code, self.ended_at, cpu_seconds, self.peak_bytes]
        return [*began, *ended, self.has_output, self.is_swept]

    @classmethod
    def of(cls, facts: Facts) -> Self:
        """Return a task with these facts."""
        task = cls(facts[0])
        task.pid, task.mark, task.began_at, task.is_over, task.code = facts[1:6]
        task.ended_at, task.cpu_seconds, task.peak_bytes = facts[6:9]
        task.has_output, task.is_swept = facts[9:11]
        return task

    def count(self, used: resource.struct_rusage) -> None:
        """Add the usage of an ended process of the task, and of the children that it reaped."""
        self.cpu_seconds += used.ru_utime + used.ru_stime
        self.peak_bytes = max(self.peak_bytes, used.ru_maxrss * 1024)
