"""Render jobs and tasks for a terminal, with the names and colours of the ten states."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cellrun.display.listing import Listing, new_table
from cellrun.documents import Hold, Job, ProjectHold, Task
from cellrun.states import TERMINAL_STATES
from cellrun.task_options import describe_concurrency, describe_constraints, show_marks

# Iris, "Dashboard Display". A copy of the colours of the control plane, which the client does not
# import; a test compares the two.
COLOURS = {
    "PENDING": "#9a6700",
    "ASSIGNED": "#bc4c00",
    "BUILDING": "#8250df",
    "RUNNING": "#0969da",
    "SUCCEEDED": "#1a7f37",
    "FAILED": "#cf222e",
    "KILLED": "#57606a",
    "WORKER_FAILED": "#8250df",
    "UNSCHEDULABLE": "#cf222e",
    "PREEMPTED": "#bc4c00",
}
RESULT_WIDTH = 40
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def state_text(state: str, count: int | None = None) -> Text:
    """Return a state in its colour, with a count: `3 running`."""
    words = state.lower() if count is None else f"{count} {state.lower()}"
    return Text(words, style=COLOURS.get(state, ""), no_wrap=True)


def counts_text(counts: Mapping[str, int]) -> Text:
    """Return counts by state in the order of a task's life: `1 pending, 3 running`."""
    known = [state_text(state, counts[state]) for state in COLOURS if counts.get(state)]
    others = [Text(f"{n} {s.lower()}") for s, n in counts.items() if n and s not in COLOURS]
    return Text(", ").join(known + others)


def job_table(jobs: Iterable[Job]) -> Table:
    """Return a table with one line per job, with their projects if there are several."""
    shown = list(jobs)
    projects = [f"{job['domain']}/{job['project']}" for job in shown]
    is_mixed = len(set(projects)) > 1
    names = ("JOB", "PROJECT", "NAME") if is_mixed else ("JOB", "NAME")
    wide = ("OWNER", "BAND", "GUID", "LABELS")
    table = new_table(*names, "STATE", "TASKS", "POOL", "CREATED", "TOOK", wide=wide)
    for job, project in zip(shown, projects, strict=True):
        table.add_row(
            str(job["id"]),
            *([project] if is_mixed else ()),
            job["name"],
            _job_state(job),
            counts_text(total_counts(job)),
            job["pool"],
            instant_text(job["created_at"]),
            duration_text(job["started_at"], job["finished_at"]),
            job["owner"],
            job["band"],
            job["guid"] or "",
            Text(show_marks(job["labels"], ())),
        )
    return table


def process_table(jobs: Iterable[Job], now: datetime) -> Listing:
    """Return a table with one line per job, with its owner and the time since its submission."""
    wide = ("PROJECT", "POOL", "BAND", "GUID", "LABELS")
    table = new_table("JOB", "NAME", "OWNER", "STATE", "TASKS", "AGE", "TOOK", wide=wide)
    for job in jobs:
        end = job["finished_at"] or now.isoformat()
        table.add_row(
            str(job["id"]),
            job["name"],
            job["owner"],
            _job_state(job),
            counts_text(total_counts(job)),
            duration_text(job["created_at"], now.isoformat()),
            duration_text(job["started_at"], end),
            f"{job['domain']}/{job['project']}",
            job["pool"],
            job["band"],
            job["guid"] or "",
            Text(show_marks(job["labels"], ())),
        )
    return table


def status_line(job: Job) -> Text:
    """Return a line about a job: `job 7 (sweep) running: 3 running, 1 failed`."""
    head = Text.assemble(f"job {job['id']} ({job['name']}) ", _job_state(job), ": ")
    return head.append_text(counts_text(total_counts(job)))


def job_page(job: Job, tasks: Iterable[Task], total: int) -> RenderableType:
    """Return a page of one job: head, groups with counts by state, and tasks (of `total`)."""
    head = Text.assemble(
        (f"{job['name']} ", "bold"), f"job {job['id']}  ", _job_state(job), _facts(job)
    )
    parts: list[RenderableType] = [head]
    if related := _relations(job):
        parts.append(Text(" · ".join(related)))
    if job["failure_reason"]:
        parts.append(Text(job["failure_reason"], style=COLOURS["FAILED"]))
    groups = new_table("GROUP", "TASKS", "COUNTS")
    for name, by_phase in job["task_status_count"].items():
        counts = by_phase.get("phase", {})
        groups.add_row(name, str(sum(counts.values())), counts_text(counts))
    shown = list(tasks)
    parts += [Text(), groups, Text(), task_table(shown)]
    if total > len(shown):
        parts.append(
            Text(f"… and {total - len(shown)} more tasks (--limit N shows more)", style="dim")
        )
    return Group(*parts)


def task_table(tasks: Iterable[Task]) -> Table:
    """Return a table with one line per task, with its result or reason."""
    shown = list(tasks)
    has_cache = any(task["cache_status"] != "DISABLED" for task in shown)
    names = ["TASK", "ID", "STATE", "CELL", "ATTEMPTS", "EXIT", "TOOK"]
    wide = ("STARTED", "GUID", "ATTEMPT")
    table = new_table(*names, *(["CACHE"] if has_cache else []), "RESULT OR REASON", wide=wide)
    for task in shown:
        table.add_row(
            f"{task['group']}.{task['index']}",
            str(task["id"]),
            state_text(task["state"]),
            task["cell_id"] or "",
            str(task["attempt_number"]),
            "" if task["exit_code"] is None else str(task["exit_code"]),
            duration_text(task["started_at"], task["finished_at"]),
            *([cache_text(task)] if has_cache else []),
            Text(note(task)),
            instant_text(task["started_at"]),
            task["guid"],
            task["attempt_uid"] or "",
        )
    return table


def cache_text(task: Task) -> str:
    """Return the use of the cache by a task: `HIT: result of job 12, task 40`."""
    origin, status = task["cache_origin"], task["cache_status"]
    if origin is not None and origin["job"] is None:
        return f"{status}: result of a job that is deleted or of another project"
    if origin is not None:
        return f"{status}: result of job {origin['job']}, task {origin['task']}"
    return "" if status == "DISABLED" else status


def note(task: Task) -> str:
    """Return why a task waits, why it failed, or the beginning of its result."""
    reason = task["pending_reason"]
    if task["state"] == "PENDING" and reason:
        return reason["text"]
    if task["failure_reason"]:
        return task["failure_reason"]
    result = " ".join((task["result"] or "").split())
    return result if len(result) <= RESULT_WIDTH else result[: RESULT_WIDTH - 1] + "…"


def explanation(document: Mapping[str, Any], title: str) -> RenderableType:
    """Return the explanation of a task's state: its text, then the figures.

    Of a task that never fits, only the text.
    """
    lines = [Text.assemble((title, "bold"))]
    reason = document.get("reason")
    if isinstance(reason, Mapping) and reason.get("text") == document.get("text"):
        figures = {name: value for name, value in reason.items() if name != "text"}
        document = {**document, "reason": figures}
        if reason.get("never_fits"):
            # The text has the figures. A place in the queue would promise a start.
            document = {"text": document["text"]}
    lines += _figures(document, indent=2)
    return Group(*lines)


def total_counts(job: Job) -> dict[str, int]:
    """Return counts by state over all groups of a job."""
    totals: dict[str, int] = {}
    for by_phase in job["task_status_count"].values():
        for state, count in by_phase.get("phase", {}).items():
            totals[state] = totals.get(state, 0) + count
    return totals


def finished_count(job: Job) -> tuple[int, int]:
    """Return the number of terminal tasks of a job, and of all its tasks."""
    counts = total_counts(job)
    return sum(n for s, n in counts.items() if s in TERMINAL_STATES), sum(counts.values())


def instant_text(instant: str | None) -> str:
    """Return an instant in the local time zone; empty if there is none."""
    if not instant:
        return ""
    return datetime.fromisoformat(instant).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def seconds_between(start: str | None, end: str | None) -> float | None:
    """Return the seconds between two instants, if both are known."""
    if not start or not end:
        return None
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


def duration_text(start: str | None, end: str | None) -> str:
    """Return the time between two instants: `0.4 s`, `1 m 03 s`, `2 h 05 m`; or an empty text."""
    seconds = seconds_between(start, end)
    return "" if seconds is None else length_text(seconds)


def length_text(seconds: float) -> str:
    """Return a length of time in the format of `duration_text`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} m"


def size_text(size: int) -> str:
    """Return a number of bytes with a unit: `1.5 MiB`."""
    amount, unit = float(size), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f} {_UNITS[unit]}" if unit else f"{size} B"


def stored_text(used: int, limit: int | None) -> str:
    """Return `1.5 MiB of 2.0 GiB`; without a limit the usage alone, and nothing if that is 0."""
    if limit is None:
        return size_text(used) if used else ""
    return f"{size_text(used)} of {size_text(limit)}"


def _job_state(job: Job) -> Text:
    state = state_text(job["state"])
    if job["ending_as"] and job["state"] not in TERMINAL_STATES:
        return Text.assemble(state, ", ending as ", state_text(job["ending_as"]))
    return state


def _facts(job: Job) -> str:
    took = duration_text(job["started_at"], job["finished_at"])
    facts = [f"pool {job['pool']}", f"band {job['band']}", instant_text(job["created_at"])]
    return "  " + " · ".join([*facts, *([f"took {took}"] if took else [])])


def instant_of(job: Job) -> str:
    """Return the schedule and the instant of a job in words; empty if no schedule submitted it."""
    found = job["schedule"]
    return f"submitted by schedule {found['name']} for {found['at']}" if found else ""


def _relations(job: Job) -> list[str]:
    """Return texts about the gang, the constraints, the key and the related jobs of a job."""
    parts = []
    spec = job["spec"] or {}
    if job["coscheduled"]:
        where = f" on cells with the same {spec['group_by']}" if spec.get("group_by") else ""
        parts.append(f"a gang{where}" + (", being requeued" if job["requeuing"] else ""))
    if constraints := describe_constraints(spec):
        parts.append(f"requires {constraints}")
    if rule := spec.get("concurrency"):
        parts.append(describe_concurrency(rule))
    if job["retry_of"] is not None:
        parts.append(f"a retry of job {job['retry_of']}")
    if job["schedule"] is not None:
        parts.append(instant_of(job))
    if job["parent"] is not None:
        parts.append(f"a child of job {job['parent']}")
    if job["children"]:
        parts.append("1 child" if job["children"] == 1 else f"{job['children']} children")
    parts += [hold_text(hold) for hold in job["holds"]]
    for item in job["waits_for"]:
        text = {
            "open": "waits until job {name} has {until}",
            "met": "dependency met: job {name} has {until}",
            "failed": "dependency failed: job {name} has not {until}",
        }[item["state"]]
        parts.append(text.format(name=item["name"], until=item["until"]))
    return parts


def hold_text(hold: Hold | ProjectHold) -> str:
    """Return the holder, the reason and the beginning of a hold."""
    what = f"project {hold['project']} held" if hold["project"] else "held"
    return f"{what} by {hold['by']} since {instant_text(hold['since'])}: {hold['reason']}"


def _figures(value: Any, indent: int) -> list[Text]:
    pad = " " * indent
    if isinstance(value, Mapping):
        lines: list[Text] = []
        for name, inner in value.items():
            if inner in (None, "", {}, []):
                continue
            if isinstance(inner, Mapping | list):
                lines += [Text(f"{pad}{name}:"), *_figures(inner, indent + 2)]
            else:
                style = COLOURS.get(str(inner), "")
                lines.append(Text.assemble(f"{pad}{name}: ", (str(inner), style)))
        return lines
    if isinstance(value, list):
        return [line for item in value for line in _figures(item, indent)]
    return [Text(f"{pad}{value}")]
