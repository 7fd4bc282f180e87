"""Find processes that exit in the output of supervisor, and those whose restart cannot help."""

import re
from collections.abc import Iterable

from controlplane.config.stack.failure import StackError
from controlplane.config.stack.parts.engine import Echo
from controlplane.config.stack.parts.home import StackHome

# Lines of supervisor about a process that exited, or that it no longer restarts.
EXITED = re.compile(r"(?:exited|gave up): (?P<name>\S+)( \(.*\))?")
# The exit status of a process that refuses its settings or its command line, as it would again.
SETTINGS_REFUSED = "settings refused: "
REFUSED = re.compile(r"exited: (?P<name>\S+) \(exit status 2;")


class Exits:
    """The exits of the processes of one start."""

    def __init__(self, home: StackHome) -> None:
        self._home = home
        self._refused = ""
        self.names: list[str] = []

    def read(self, lines: Iterable[str], echo: Echo) -> None:
        """Print and keep supervisor's lines about exited processes; its log has all lines."""
        for line in lines:
            found = EXITED.search(line)
            if not found:
                continue
            # The group of a process, which supervisor writes before its name in some lines.
            name = found["name"].rpartition(":")[2]
            self.names.append(name)
            if REFUSED.search(line):
                self._refused = self._refused or name
            echo(found[0])

    def check(self) -> None:
        """Raise StackError with the message of the first process that refused to start."""
        if not self._refused:
            return
        path = self._home.logs / f"{self._refused}.log"
        text = path.read_text(errors="replace").rstrip() if path.exists() else ""
        _, marker, faults = text.rpartition(SETTINGS_REFUSED)
        why = marker + faults or text.rpartition("\n")[2] or "it printed nothing"
        raise StackError(
            f"{self._refused} refuses to start (exit status 2): {why}\nIts log: {path}"
        )
