"""The spawner's loop: output, ends and requests of all tasks of a cell."""

import contextlib
import errno
import json
import os
import select
import socket
import time
from typing import Any

from workers import clock
from workers.spawner.client import SpawnerClient
from workers.spawner.folders import Folders
from workers.spawner.journal import SpawnerJournal
from workers.spawner.launching import spawn
from workers.spawner.scanning import (
    KILLED_SECONDS,
    children,
    end_left_behind,
    inspect_process,
    kill,
    mark_of,
    root_of,
)
from workers.spawner.task import SpawnedTask, StreamCopy

FIRST_SECONDS = 20.0  # for the starter to connect
REWRITE_LINES = 20_000  # of the journal, before it is compacted
# Errors of a start that are not caused by the command.
RESOURCE_ERRNOS = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC)


class Spawner:
    """The loop handles output, ends, requests, in this order, because descriptors are reused."""

    def __init__(self, work: str, listener: socket.socket, wake: int) -> None:
        self.work = work
        self.folders = Folders(work)
        self.listener = listener
        self.wake = wake
        self.journal = SpawnerJournal()
        self.tasks: dict[str, SpawnedTask] = {}
        self.running: dict[int, SpawnedTask] = {}  # by pid, until the task has ended
        self.roots: dict[bytes, SpawnedTask] = {}
        self.ending: list[SpawnedTask] = []  # the first process has ended
        self.has_hidden = False  # there may be a process whose task is unknown
        self.orphans: dict[int, SpawnedTask] = {}  # killed processes to reap, by pid
        self.clients: dict[int, SpawnerClient] = {}
        self.logs: dict[int, StreamCopy] = {}
        self.poll = select.epoll()

    def begin(self) -> None:
        """Read the journal of an earlier spawner, and kill the tasks that it left."""
        boot, self.tasks = self.journal.read()
        open_tasks = {uid: task for uid, task in self.tasks.items() if not task.is_over}
        if open_tasks:
            end_left_behind(open_tasks, self.work, is_same_boot=boot == clock.boot_id())
        for task in open_tasks.values():
            task.is_over, task.ended_at = True, clock.wall_seconds()
        self.journal.rewrite(self.tasks)
        self.folders.begin()
        for descriptor in (self.wake, self.listener.fileno()):
            self.poll.register(descriptor, select.EPOLLIN)

    def serve(self) -> None:
        """Serve until there are no tasks and no connections."""
        deadline = time.monotonic() + FIRST_SECONDS
        while self.clients or self.running or time.monotonic() < deadline:
            timeout = KILLED_SECONDS if self.ending else FIRST_SECONDS
            events = dict(self.poll.poll(timeout if self.clients or self.running else 1.0))
            if self.wake in events:
                os.read(self.wake, 4096)
            if self.wake in events or self.ending:
                self.reap()
            for descriptor, mask in events.items():
                if descriptor in self.logs:
                    self.copy(descriptor, mask)
            for descriptor in list(events):
                if descriptor in self.clients:
                    self.read_from(self.clients[descriptor])
            if self.listener.fileno() in events:
                # Requests of a killed cell are carried out before its successor connects.
                for client in list(self.clients.values()):
                    while self.read_from(client):
                        pass
                self.accept_client()
                deadline = 0.0
            for client in list(self.clients.values()):
                self.flush(client)

    def copy(self, descriptor: int, mask: int) -> None:
        """Copy output of a task; stop reading a stream at its end."""
        log = self.logs[descriptor]
        has_more = log.copy()
        if log.file >= 0 and not log.task.has_output:
            log.task.has_output = True
            for client in self.clients.values():
                client.send("output", log.task.uid)
        if not has_more and mask & select.EPOLLHUP:
            self.poll.unregister(descriptor)
            del self.logs[descriptor]

    def reap(self) -> None:
        """Reap ended processes; kill the remaining processes of each ended task."""
        with contextlib.suppress(ChildProcessError):
            while (
                seen := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            ) is not None:
                pid = seen.si_pid
                task = self.running.get(pid)
                if task is not None:
                    kill(pid, group=True)  # before its pid can be reused
                _, status, used = os.wait4(pid, 0)
                if task is not None:
                    code = os.waitstatus_to_exitcode(status)
                    task.code = 128 - code if code < 0 else code
                    self.ending.append(task)
                owner = task or self.orphans.pop(pid, None)
                if owner is not None:
                    owner.count(used)
        if self.ending:
            remaining = self.kill_remaining(self.ending)
            for task in self.ending:
                if task not in remaining:
                    self.close(task)
            self.ending = remaining

    def kill_remaining(self, ending: list[SpawnedTask]) -> list[SpawnedTask]:
        """Kill the remaining processes of these tasks; return the tasks that had any."""
        remaining: list[SpawnedTask] = []
        ended = {task.pid for task in ending}
        for pid in children():
            if pid in self.running and pid not in ended:
                continue
            seen = inspect_process(pid)
            if seen is None:
                continue
            owner = self.running.get(seen[0]) or self.roots.get(root_of(pid))
            if owner is None:
                # The process left its session and hid its environment. It may belong to any running
                # task that is older; without such a task it is killed with this one.
                others = (task for task in self.running.values() if task.pid not in ended)
                if any(task.mark <= seen[1] for task in others):
                    self.has_hidden = True
                    continue
                owner = ending[-1]
            if owner.pid in ended:
                kill(pid)
                self.orphans[pid] = owner
                remaining.append(owner)
        return remaining

    def close(self, task: SpawnedTask) -> None:
        """Record and report the end of a task."""
        for log in task.logs:
            self.logs.pop(log.descriptor, None)
            log.close()
            task.has_output = task.has_output or log.file >= 0
        task.logs = []
        if task.folder is not None:
            task.is_swept = self.folders.sweep(task.folder, may_be_reused=not self.has_hidden)
        task.is_over, task.ended_at = True, clock.wall_seconds()
        del self.running[task.pid]
        self.roots.pop(task.root, None)
        self.publish(task)
        if task.waiters:
            self.forget(task.uid)
        for client, number in task.waiters:
            client.send("answer", number, "forgotten")

    def publish(self, task: SpawnedTask, origin: SpawnerClient | None = None) -> None:
        """Record the changed facts, and send them to all connections except `origin`."""
        facts = task.facts()
        with contextlib.suppress(OSError):  # a full disk: this process still has the facts
            self.journal.add("fact", facts)
        for client in self.clients.values():
            if client is not origin:
                client.send("fact", facts)

    def forget(self, uid: str, origin: SpawnerClient | None = None) -> None:
        """Forget a task that has ended; report that to all connections except `origin`."""
        task = self.tasks.get(uid)
        if task is None or task.pid in self.running:
            return
        del self.tasks[uid]
        for client in self.clients.values():
            if client is not origin:
                client.send("forget", uid)
        with contextlib.suppress(OSError):
            self.journal.add("forget", uid)
            if self.journal.lines > REWRITE_LINES + 4 * len(self.tasks):
                self.journal.rewrite(self.tasks)

    def accept_client(self) -> None:
        """Accept a connection, and greet it with all tasks."""
        with contextlib.suppress(OSError):
            connection, _ = self.listener.accept()
            connection.setblocking(False)
            client = self.clients[connection.fileno()] = SpawnerClient(connection)
            self.poll.register(connection.fileno(), select.EPOLLIN)
            client.send("known", [task.facts() for task in self.tasks.values()])

    def read_from(self, client: SpawnerClient) -> bool:
        """Carry out the requests of a client; return whether there were any."""
        requests, is_there = client.requests()
        for number, verb, uid, *order in requests:
            if verb == "begin":
                client.send("begun", uid, *self.begin_ordered(uid, order[0], client))
            elif verb == "run":
                client.send("answer", number, *self.run(uid, client))
            elif verb == "forget":
                self.forget(uid, client)
            elif verb == "pids":
                client.send("answer", number, "pids", *self.pids(uid))
            else:
                self.remove(uid, client, number)
        if not is_there:
            self.disconnect(client)
        return bool(requests) and is_there

    def begin_ordered(self, uid: str, order: dict[str, Any], client: SpawnerClient) -> list[Any]:
        """Start a task, once, with the order in the request; create its folder."""
        if uid in self.tasks:
            return ["again"]
        return self.start(uid, order, client, self.folders.path(uid))

    def run(self, uid: str, client: SpawnerClient) -> list[Any]:
        """Start a task, once, with the order in its folder."""
        if uid in self.tasks:
            return ["again"]
        try:
            with open(f"{self.work}/{uid}/order.json", encoding="utf-8") as file:
                order = json.load(file)
        except (FileNotFoundError, ValueError):  # missing or incomplete
            return ["gone"]
        return self.start(uid, order, client, None)

    def start(
        self, uid: str, order: dict[str, Any], client: SpawnerClient, folder: str | None
    ) -> list[Any]:
        """Claim the task and start it; `folder`: to be created, None if the cell created it."""
        pipes: list[int] = []
        try:
            self.journal.add("claim", uid)
            if folder is not None:
                self.folders.make(folder)
            pipes += os.pipe()
            pipes += os.pipe()
            task = self.tasks[uid] = SpawnedTask(uid)
            task.folder = folder
            task.pid = spawn(order, pipes[1], pipes[3])
        except (OSError, ValueError) as error:
            for descriptor in pipes:
                os.close(descriptor)
            return self.fail(uid, order, error)
        os.close(pipes[1])
        os.close(pipes[3])
        task.mark, task.began_at = mark_of(task.pid), clock.wall_seconds()
        task.root = os.fsencode(order["root"])
        task.logs = [
            StreamCopy(task, order, "stdout", pipes[0]),
            StreamCopy(task, order, "stderr", pipes[2]),
        ]
        for log in task.logs:
            self.logs[log.descriptor] = log
            self.poll.register(log.descriptor, select.EPOLLIN)
        self.running[task.pid] = self.roots[task.root] = task
        self.publish(task, client)
        return ["running", task.facts()]

    def fail(self, uid: str, order: dict[str, Any], error: Exception) -> list[str]:
        """Forget a task that could not be started, so that it can be retried; return the answer."""
        self.tasks.setdefault(uid, SpawnedTask(uid))
        self.forget(uid)
        if not isinstance(error, OSError):
            error = OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        words = (error.strerror or str(error)).lower()
        if error.errno in RESOURCE_ERRNOS:
            return ["failed", words]
        return ["exec", f"exec {order['argv'][0]!r}: {words}"]

    def pids(self, uid: str) -> list[int]:
        """Return the processes of a task that are children of the spawner."""
        task = self.tasks.get(uid)
        if task is None or task.is_over:
            return []
        others = [pid for pid in children() if pid not in self.running]
        in_task = [pid for pid in others if root_of(pid) == task.root]
        return [task.pid, *in_task]

    def remove(self, uid: str, client: SpawnerClient, number: int) -> None:
        """Kill a task if it runs; answer when it has ended and is forgotten."""
        task = self.tasks.get(uid)
        if task is not None and not task.is_over:
            kill(task.pid)
            task.waiters.append((client, number))
        else:
            self.forget(uid)
            client.send("answer", number, "forgotten")

    def flush(self, client: SpawnerClient) -> None:
        """Send queued messages; send the rest when the socket is writable again."""
        if not client.outgoing:
            return
        text = b"".join(client.outgoing)
        try:
            sent = client.connection.send(text)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.disconnect(client)
            return
        client.outgoing = [text[sent:]] if sent < len(text) else []
        if bool(client.outgoing) != client.has_unsent:
            client.has_unsent = bool(client.outgoing)
            mask = select.EPOLLIN | (select.EPOLLOUT if client.has_unsent else 0)
            self.poll.modify(client.connection.fileno(), mask)

    def disconnect(self, client: SpawnerClient) -> None:
        """Close the connection."""
        self.clients.pop(client.connection.fileno(), None)
        client.outgoing = []
        client.connection.close()
