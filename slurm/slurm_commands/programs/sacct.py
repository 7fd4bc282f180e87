"""`sacct`: list jobs and array tasks, also those that have ended, as long as they are retained."""

import getpass
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from slurm_commands.columns import NEEDS_TASK, SACCT, fit, utc_now
from slurm_commands.listing import JobRow, find_rows
from slurm_commands.options import Option, OptionTable, Refused, split_list
from slurm_commands.programs.entry import run
from slurm_commands.programs.filters import read_filters
from slurm_commands.programs.server import with_session
from slurm_commands.states import read_states

OPTIONS = OptionTable(
    (
        Option("allocations", "X", takes_value=False),
        Option("noheader", "n", takes_value=False),
        Option("parsable", "p", takes_value=False),
        Option("parsable2", "P", takes_value=False),
        Option("format", "o"),
        Option("jobs", "j", aliases=("job",)),
        Option("name"),
        Option("user", "u"),
        Option("allusers", "a", takes_value=False),
        Option("account", "A", aliases=("accounts",)),
        Option("partition", "r"),
        Option("state", "s"),
        Option("starttime", "S"),
        Option("endtime", "E"),
        Option("clusters", "M"),
    )
)
USUAL_FORMAT = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"
_TIMES = ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d", "%m/%d/%y", "%m/%d")
_RELATIVE = re.compile(r"now-(\d+)(seconds?|minutes?|hours?|days?|weeks?)")
# A job with a step, which is how sacct names the programs that srun started in a job.
_STEP = re.compile(r"\d+(_\d+)?\.(\d+|batch|extern)")


@dataclass(frozen=True, slots=True)
class Column:
    """A field with its width; `is_left`: its text begins at the left."""

    field: str
    width: int
    is_left: bool


def read_columns(text: str) -> list[Column]:
    """Return the columns of `jobid,state%20`. Raise Refused for an unknown field."""
    columns = []
    for word in text.split(","):
        name, percent, width = word.partition("%")
        field = name.strip().lower()
        if field not in SACCT:
            known = ", ".join(title for title, _, _ in SACCT.values())
            raise Refused(f"--format: {name} is not supported; use {known}")
        digits = width.removeprefix("-")
        if percent and not digits.isdigit():
            raise Refused(f"--format: {word}: the width is not a number")
        is_left = width.startswith("-") or field.startswith("jobid")
        columns.append(Column(field, int(digits) if percent else SACCT[field][1], is_left))
    return columns


def read_instant(text: str, option: str, now: datetime) -> datetime:
    """Return the instant of `now`, `now-2days`, `today`, a date or a time. Raise Refused."""
    local = now.astimezone()
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
    if text in ("now", "today", "midnight"):
        return local if text == "now" else midnight
    relative = _RELATIVE.fullmatch(text)
    if relative:
        return local - timedelta(**{relative[2].rstrip("s") + "s": int(relative[1])})
    for pattern in _TIMES:
        try:
            found = datetime.strptime(text, pattern)  # noqa: DTZ007 (local, see the next line)
        except ValueError:
            continue
        year = local.year if "%y" not in pattern.lower() else found.year
        return found.replace(year=year).astimezone()
    raise Refused(f"--{option}={text}: is not a time such as 2026-11-28T08:00 or now-2days")


def show_accounting(words: Sequence[str]) -> None:
    """Print the list of a command line."""
    given, rest = OPTIONS.parse_mixed(words)
    if rest:
        raise Refused(f"{rest[0]!r} is not an option")
    if given.get("clusters", "all") not in ("all", "cellrun"):
        raise Refused(f"--clusters={given['clusters']}: the only cluster is cellrun")
    columns = read_columns(given.get("format", USUAL_FORMAT))
    states = read_states(split_list(given, "state"))
    now = utc_now()
    end = read_instant(given["endtime"], "endtime", now) if "endtime" in given else None
    has_steps = [word for word in split_list(given, "jobs") if _STEP.fullmatch(word)]
    jobs = ",".join(word for word in split_list(given, "jobs") if word not in has_steps)
    if has_steps and not jobs:
        _print([], columns, given, now)  # steps are not recorded
        return
    filters = given | {"jobs": jobs}
    if not {"user", "allusers", "jobs"} & set(given):
        filters["user"] = getpass.getuser()
    since = None
    if not jobs:
        since = read_instant(given.get("starttime", "today"), "starttime", now)
    selection = read_filters(filters, since=since)
    needs_tasks = any(column.field in NEEDS_TASK for column in columns)
    rows = with_session(lambda session: find_rows(session, selection, with_tasks=needs_tasks))
    chosen = [
        row
        for row in rows
        if (not states or row.state in states)
        and (end is None or datetime.fromisoformat(row.job["created_at"]) <= end)
    ]
    _print(chosen, columns, given, now)


def _print(rows: list[JobRow], columns: list[Column], given: dict[str, str], now: datetime) -> None:
    is_parsable = "parsable" in given or "parsable2" in given
    lines = [[SACCT[column.field][0] for column in columns]] if "noheader" not in given else []
    if lines and not is_parsable:
        lines.append(["-" * column.width for column in columns])
    lines += [[SACCT[column.field][2](row, now) for column in columns] for row in rows]
    for line in lines:
        if is_parsable:
            print("|".join(line) + "|" * ("parsable" in given))
        else:
            cells = zip(line, columns, strict=True)
            print(" ".join(fit(t, c.width, is_left=c.is_left, mark="+") for t, c in cells), "")


def main() -> None:
    """Run `sacct`."""
    run("sacct", show_accounting)
