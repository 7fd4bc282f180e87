"""`cellrun history`: show the changes of a job, a task or an attempt."""

from collections.abc import Iterable
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cellrun.addresses import find_subject
from cellrun.api.session import Session, connect
from cellrun.display.listing import new_table
from cellrun.display.output import TABLE, OutputOption, show
from cellrun.display.render import instant_text, length_text, state_text
from cellrun.display.terminal import IsTask, Which
from cellrun.documents import Change
from cellrun.errors import BadInput
from cellrun.states import TERMINAL_STATES


def history(
    which: Which,
    is_task: IsTask = False,
    is_whole: Annotated[
        bool, typer.Option("--unmerged", help="Print one line per change, also for repeated ones.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of lines, the newest.")] = 100,
    output: OutputOption = TABLE,
) -> None:
    """Show the changes of a job, a task or an attempt, oldest first. Repeated changes are one line.

    With -o json or yaml the newest is first, as in the API.
    """
    with connect() as session:
        found = _find(session, which, is_task=is_task, merged=not is_whole, limit=limit + 1)
    shown = found[:limit]
    drawn: list[RenderableType] = [history_table(reversed(shown))]
    if len(found) > limit:
        drawn.insert(0, Text("… earlier changes are omitted (--limit N shows more)", style="dim"))
    show(output, shown, Group(*drawn))


def _find(session: Session, which: str, *, is_task: bool, merged: bool, limit: int) -> list[Change]:
    """Return the newest changes of the job, task or attempt that `which` names."""
    subject = find_subject(session, which, is_task=is_task)
    if subject.attempt is not None:
        uid = subject.attempt["uid"]
        return list(session.history("attempts", uid, merged=merged, limit=limit))
    if subject.task is not None:
        return list(session.history("tasks", subject.task["id"], merged=merged, limit=limit))
    assert subject.job_id is not None
    if subject.group is not None:
        raise BadInput(f"{which}: expected a job, a task or an attempt, not a group")
    return list(session.history("jobs", subject.job_id, merged=merged, limit=limit))


def history_table(changes: Iterable[Change]) -> Table:
    """Return a table of changes. STAYED: time in the new state; of several, total and longest."""
    table = new_table("AT", "SUBJECT", "CHANGE", "REASON", "ACTOR", "STAYED")
    # A time without its end would mislead: other columns get narrower instead.
    table.columns[0].no_wrap = True
    for change in changes:
        table.add_row(
            _at(change),
            _subject(change),
            _states(change),
            _reason(change),
            change["actor"],
            _stay(change),
        )
    return table


def _at(change: Change) -> Text:
    first, last = instant_text(change["first_at"]), instant_text(change["last_at"])
    same = first == last
    return Text(first if same else f"{first} … {last.removeprefix(first[:11])}", no_wrap=True)


def _subject(change: Change) -> str:
    count, tasks = change["count"], change["tasks"]
    if tasks == 0:
        return "job"
    if change["task_name"] is None:
        return f"{tasks} tasks" if tasks == count else f"{tasks} tasks, {count} times"
    if count > 1:
        return f"{change['task_name']}, {count} times"
    number = change["attempt_number"]
    return change["task_name"] + (f" (attempt {number})" if number else "")


def _states(change: Change) -> Text:
    before, after = change["from_state"], change["to_state"]
    if after is None or before == after:
        return state_text(change["attempt_state"]) if change["attempt_state"] else Text()
    if before is None:
        return state_text(after)
    return Text.assemble(state_text(before), " → ", state_text(after))


def _reason(change: Change) -> Text:
    place = change["cell_id"]
    text = change["text"] + (f" ({place})" if place and place != change["actor"] else "")
    return Text(f"{text}: {change['message']}" if change["message"] else text)


def _stay(change: Change) -> str:
    seconds, longest = change["seconds"], change["longest_seconds"]
    if seconds is None:
        is_open = change["still"] and change["to_state"] not in TERMINAL_STATES
        return "still there" if is_open else ""
    if change["count"] == 1 or longest is None:
        return length_text(seconds)
    return f"{length_text(seconds)} in total, {length_text(longest)} at most"
