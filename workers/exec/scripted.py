"""Programs of the memory driver: a script of their course, as for its attempts.

    echo WORD        write this word and a newline
    error WORD       write it to the stream of errors
    cat              copy the input to the output
    size             write `ROWS COLUMNS` at each change of size
    sleep            run until a signal: its exit code is 128 plus its number
    exit CODE        end with this code

Words can be combined: `echo a cat exit 3`; `exit 0` follows the last one.
"""

import queue
import threading
from collections.abc import Callable, Iterator

from workers.exec.program import (
    BLOCK_BYTES,
    NOT_FOUND,
    ExecCommand,
    ExecRefused,
    ProgramEnd,
    ProgramOutput,
)

KILLED = 137
_WORDS = {"echo": 1, "error": 1, "exit": 1, "cat": 0, "size": 0, "sleep": 0}


class ScriptedProgram:
    """See ExecProgram in workers.exec.program."""

    def __init__(self, command: ExecCommand, is_over: Callable[[], bool]) -> None:
        """Parse the script. Raise ExecRefused."""
        self._steps = list(_parse(command.argv))
        self._is_over = is_over
        self._input: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._sizes: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._code = 0

    def read(self) -> ProgramOutput | None:
        """Return the output of the next step that has some."""
        while self._steps and not self._ended.is_set():
            name, word = self._steps[0]
            match name:
                case "echo" | "error":
                    self._steps.pop(0)
                    return ProgramOutput(f"{word}\n".encode(), name == "error")
                case "cat":
                    if content := self._input.get():
                        return ProgramOutput(content)
                    self._steps.pop(0)
                case "size":
                    if (size := self._sizes.get()) is not None:
                        return ProgramOutput(f"{size[0]} {size[1]}\n".encode())
                    self._steps.pop(0)
                case "sleep":
                    self._ended.wait()
                case _:
                    self._code = int(word)
                    break
        return None

    def write(self, content: bytes) -> None:
        """Queue the input."""
        for start in range(0, len(content), BLOCK_BYTES):
            self._input.put(content[start : start + BLOCK_BYTES])

    def close_input(self) -> None:
        """Queue the end of the input."""
        self._input.put(None)

    def resize(self, rows: int, columns: int) -> None:
        """Queue a new size."""
        self._sizes.put((rows, columns))

    def signal(self, number: int) -> None:
        """End the program."""
        self._end(128 + number)

    def end_with_attempt(self) -> None:
        """End the program after the end of its attempt."""
        if self._is_over():
            self._end(KILLED)

    def wait(self) -> ProgramEnd:
        """Return the end."""
        return ProgramEnd(self._code)

    def close(self) -> None:
        """End the program."""
        self._end(KILLED)

    def _end(self, code: int) -> None:
        if not self._ended.is_set():
            self._code = code
            self._ended.set()
            self._input.put(None)
            self._sizes.put(None)


def _parse(argv: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    words = iter(argv)
    for word in words:
        if word not in _WORDS:
            reason = f"the memory driver does not know the command {list(argv)!r}"
            raise ExecRefused(reason, NOT_FOUND)
        yield word, next(words, "0") if _WORDS[word] else ""
