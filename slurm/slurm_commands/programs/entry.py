"""Run the body of a command: errors become lines on standard error and the exit code 1.

Without the client, so that `srun`, which each step of a workflow starts, begins quickly.
"""

import sys
from collections.abc import Callable, Sequence

from slurm_commands.options import Refused

EXIT_TROUBLE = 1
EXIT_INTERRUPTED = 130


class Failed(Exception):
    """A request failed; `lines` are printed, the most important first."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__(lines[0])
        self.lines = lines


def run(program: str, body: Callable[[Sequence[str]], int | None]) -> None:
    """Exit with the code of `body`, called with the arguments of the command line."""
    try:
        code = body(sys.argv[1:]) or 0
        sys.stdout.flush()
    except Refused as refused:
        code = complain(program, str(refused))
    except Failed as failed:
        code = EXIT_TROUBLE
        for line in failed.lines:
            complain(program, line)
    except BrokenPipeError:
        sys.stderr.close()
        code = EXIT_TROUBLE
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    sys.exit(code)


def complain(program: str, text: str) -> int:
    """Print an error as Slurm does and return the exit code."""
    print(f"{program}: error: {text}", file=sys.stderr)
    return EXIT_TROUBLE
