"""`squeue`: list jobs and array tasks; without --states or ids only those that have not ended."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_commands.columns import NEEDS_TASK, SQUEUE, fit, utc_now
from slurm_commands.listing import find_rows
from slurm_commands.options import Option, OptionTable, Refused, split_list
from slurm_commands.programs.entry import EXIT_TROUBLE, complain, run
from slurm_commands.programs.filters import FILTER_OPTIONS, read_filters
from slurm_commands.programs.server import with_session
from slurm_commands.states import read_states

OPTIONS = OptionTable(
    (
        *FILTER_OPTIONS,
        Option("noheader", "h", takes_value=False),
        Option("format", "o"),
        Option("jobs", "j", aliases=("job",)),
        Option("states", "t"),
        Option("array", "r", takes_value=False),
    )
)
USUAL_FORMAT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
_OPEN = "PENDING,RUNNING"
_FIELD = re.compile(r"%(?P<right>\.?)(?P<width>\d*)(?P<letter>[A-Za-z])")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a format: a field, or with `field` None a text."""

    text: str
    field: str | None = None
    width: int | None = None
    is_right: bool = False

    def show(self, value: str) -> str:
        """Return the value of the field in its width, or the text."""
        if self.field is None:
            return self.text
        return value if self.width is None else fit(value, self.width, is_left=not self.is_right)


def read_format(text: str) -> list[Part]:
    """Return the parts of a format such as `%i|%.8T`. Raise Refused for an unknown field."""
    parts, end = [], 0
    for found in _FIELD.finditer(text):
        name = f"%{found['letter']}"
        if name not in SQUEUE:
            raise Refused(f"--format: {name} is not supported; use {' '.join(SQUEUE)}")
        parts.append(Part(text[end : found.start()]))
        width = int(found["width"]) if found["width"] else None
        parts.append(Part("", name, width, bool(found["right"])))
        end = found.end()
    return [*parts, Part(text[end:])]


def show_queue(words: Sequence[str]) -> int:
    """Print the list of a command line."""
    given, rest = OPTIONS.parse_mixed(words)
    if rest:
        raise Refused(f"{rest[0]!r} is not an option")
    parts = read_format(given.get("format", USUAL_FORMAT))
    states = read_states(split_list(given, "states"))
    is_whole = "states" in given or "jobs" in given
    selection = read_filters(given, states=None if is_whole else _OPEN)
    needs_tasks = any(part.field in NEEDS_TASK for part in parts)
    rows = with_session(lambda session: find_rows(session, selection, with_tasks=needs_tasks))
    if len(selection.addresses) == 1 and not rows:
        return complain("squeue", "Invalid job id specified") or EXIT_TROUBLE
    now = utc_now()
    if "noheader" not in given:
        print("".join(p.show(SQUEUE[p.field][0] if p.field else "") for p in parts))
    for row in rows:
        # An array is open while one of its tasks is; those that have ended are left out.
        if row.state in states if states else (is_whole or not row.state.is_over):
            print("".join(p.show(SQUEUE[p.field][1](row, now) if p.field else "") for p in parts))
    return 0


def main() -> None:
    """Run `squeue`."""
    run("squeue", show_queue)
