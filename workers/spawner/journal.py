"""The tasks claimed, begun, ended and forgotten, as the spawner needs them after it was killed.

The journal is not synced to disk: when the machine fails, the tasks end as well.
"""

import errno
import json
import os
from typing import Any

from workers import clock
from workers.spawner.task import SpawnedTask


class SpawnerJournal:
    """The file `journal` in the working directory."""

    def __init__(self) -> None:
        self.file = -1
        self.lines = 0

    def read(self) -> tuple[str, dict[str, SpawnedTask]]:
        """Return the boot id under which it was written, and the tasks that are not forgotten."""
        boot = ""
        tasks: dict[str, SpawnedTask] = {}
        with open("journal", "a+", encoding="utf-8") as file:
            file.seek(0)
            for line in file:
                try:
                    verb, what = json.loads(line)
                except ValueError:  # an empty or truncated line
                    continue
                if verb == "boot":
                    boot = what
                elif verb == "claim":
                    tasks[what] = SpawnedTask(what)
                elif verb == "fact":
                    tasks[what[0]] = SpawnedTask.of(what)
                else:
                    tasks.pop(what, None)
        return boot, tasks

    def rewrite(self, tasks: dict[str, SpawnedTask]) -> None:
        """Replace the journal atomically with the current tasks."""
        entries: list[list[Any]] = [["boot", clock.boot_id()]]
        for task in tasks.values():
            entries.append(["fact", task.facts()])
        with open("journal.new", "w", encoding="utf-8") as file:
            file.writelines(json.dumps(entry) + "\n" for entry in entries)
        os.replace("journal.new", "journal")
        if self.file >= 0:
            os.close(self.file)
        self.file = os.open("journal", os.O_WRONLY | os.O_APPEND)
        self.lines = len(entries)

    def add(self, verb: str, what: Any) -> None:
        """Append an entry. Raise OSError. The leading newline ends a truncated line before it."""
        text = f"\n{json.dumps([verb, what])}\n".encode()
        if os.write(self.file, text) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.lines += 1
