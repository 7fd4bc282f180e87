"""The interface of a program that a driver has started in a running attempt.

One thread reads the output, a second one writes the input, a third one does the rest.
"""

from dataclasses import dataclass
from typing import Protocol

from controlplane.contract.exec_frames import check_command

NOT_EXECUTABLE = 126  # the codes of shells and of `docker exec`
NOT_FOUND = 127
BLOCK_BYTES = 32 * 1024


class ExecRefused(Exception):
    """The program cannot be started; `code` is the exit code to report instead of its own."""

    def __init__(self, reason: str, code: int = NOT_EXECUTABLE) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, slots=True)
class ExecCommand:
    """A program to start in an attempt. `tty`: in a pseudo-terminal; `stdin`: with an input."""

    attempt: str
    argv: tuple[str, ...]
    tty: bool = False
    stdin: bool = False

    def check(self) -> None:
        """Raise ExecRefused for a command that no session may have."""
        if fault := check_command(self.argv):
            raise ExecRefused(fault)


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """A piece of output; never empty."""

    content: bytes
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """How a program ended: its exit code, and the reason if it never ran or is unknown."""

    code: int
    reason: str = ""


class ExecProgram(Protocol):
    """A program that was started. Every call is safe after its end."""

    def read(self) -> ProgramOutput | None:
        """Return the next output; None: there will be no more. Blocks."""

    def write(self, content: bytes) -> None:
        """Pass on input; the rest is dropped if the program reads no more. Blocks."""

    def close_input(self) -> None:
        """End the input, after everything that was written."""

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the pseudo-terminal."""

    def signal(self, number: int) -> None:
        """Send a signal to the program and the processes of its group."""

    def end_with_attempt(self) -> None:
        """Kill the program if its attempt has ended. Called every second or more often."""

    def wait(self) -> ProgramEnd:
        """Return the end, once `read` has returned None."""

    def close(self) -> None:
        """Kill the program with its children; `read`, `write` and `wait` return soon."""
