"""What must be known after the spawner was killed: tasks claimed, begun, over and forgotten.

Nothing of it is forced to disk: with the machine the tasks die as well.
"""

import errno
import json
import os
from typing import Any

from workers import clock
from workers.spawner.task import SpawnedTask


class SpawnerJournal:
    """The file `journal` here: what must be known after this program was killed."""

    def __init__(self) -> None:
        self.file = -1
        self.lines = 0

    def read(self) -> tuple[str, dict[str, SpawnedTask]]:
        """In which boot of the machine it was written, and the tasks that are not forgotten."""
        boot = ""
        tasks: dict[str, SpawnedTask] = {}
        with open("journal", "a+", encoding="utf-8") as file:
            file.seek(0)
            for line in file:
                try:
                    verb, what = json.loads(line)
                except ValueError:  # an empty line, or one that was cut short
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
        """Rewrite the journal with what is known now: as a whole, or not at all."""
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
        """Raises OSError; what follows a line that was cut short begins on a new one."""
        text = f"\n{json.dumps([verb, what])}\n".encode()
        if os.write(self.file, text) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.lines += 1
