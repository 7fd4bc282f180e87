"""Runs every example on the stack at CELLRUN_URL and exits with 0 only if each ended as it should.

`python -m examples.run`; with ENGINE=process they run as plain processes, which have no limits.
"""

import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cellrun import ApiError, ClientError, Session, StillOpen, connect
from cellrun.api.polling import PollInterval, beats
from cellrun.commands.jobs.watch import wait_for
from cellrun.display.cells import CELL_COLOURS
from cellrun.display.render import note, seconds_between, state_text
from cellrun.documents import Job, Task
from cellrun.spec_file import read_spec
from examples.expectations import EXPECTATIONS, differences

FOLDER = Path(__file__).parent
# Far more than they need (some 15 s): only a stack that does not work runs into it.
DEADLINE_SECONDS = 180.0
CELLS_DEADLINE_SECONDS = 60.0
TOO_LARGE = "insufficient_resources"
TASK_TYPE_NAME = "CELLRUN_EXAMPLES_TASK_TYPE"

Spec = dict[str, Any]


def main() -> int:
    """Run all examples; return the exit code."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    try:
        with connect() as session:
            return run_examples(session, console)
    except ClientError as fault:
        for line in fault.lines():
            print(f"examples: {line}", file=sys.stderr)
        return 2


def run_examples(session: Session, console: Console) -> int:
    """Submit, wait, show, compare."""
    as_process = "process" in (os.environ.get("ENGINE"), os.environ.get(TASK_TYPE_NAME))
    specs = load_examples(as_process=as_process)
    left_out = EXPECTATIONS.keys() - specs.keys()
    await_cells(session)
    found = check_refusal(session, specs["too-big"], console)
    jobs = {name: session.submit(spec) for name, spec in specs.items()}
    console.print(", ".join(f"{name} is job {job['id']}" for name, job in jobs.items()))
    reasons = cancel_when_explained(session, jobs, console)
    ended = wait_for(session, [job["id"] for job in jobs.values()], DEADLINE_SECONDS)
    tasks = {job["id"]: list(session.tasks(job["id"])) for job in ended}
    console.print(result_table(ended, tasks, reasons))
    for name, job in zip(specs, ended, strict=True):
        found += differences(name, specs[name], job, tasks[job["id"]])
    for name in sorted(left_out):
        console.print(f"{name} was left out: a plain process has no memory limit")
    for line in found:
        console.print(Text(line, style="#cf222e"))
    console.print("all as they should be" if not found else f"{len(found)} differences")
    return 1 if found else 0


def load_examples(*, as_process: bool) -> dict[str, Spec]:
    """Return the examples by name, in the table's order, as plain processes if requested."""
    specs: dict[str, Spec] = {}
    for name, expected in EXPECTATIONS.items():
        if as_process and expected.needs_limits:
            continue
        spec = read_spec(str(FOLDER / f"{name}.yaml"))
        for group in spec.get("groups", [spec]):
            if as_process:
                group["task_type"] = "process"
                del group["image"]
        specs[name] = spec
    return specs


def await_cells(session: Session) -> None:
    """Return once a cell is ready. Raises StillOpen after a minute."""
    for _ in beats(PollInterval(CELLS_DEADLINE_SECONDS), "a cell that is READY"):
        if any(cell["state"] == "READY" for cell in session.cells()):
            return


def check_refusal(session: Session, spec: Spec, console: Console) -> list[str]:
    """Submit what can never fit, without saying that it may wait: it must be refused, with why."""
    impossible = {name: value for name, value in spec.items() if name != "allow_unsatisfiable"}
    try:
        job = session.submit(impossible)
    except ApiError as fault:
        text = " ".join(line.strip() for line in fault.lines())
        console.print(f"too-big without allow_unsatisfiable is refused: {text}")
        if fault.status == 422 and "cpu" in text:
            return []
        return [f"too-big: expected a refusal (422) that names the lack of cpu, found {text!r}"]
    session.cancel_job(job["id"], reason="should have been refused")
    return ["too-big without allow_unsatisfiable: expected a refusal, found a job"]


def cancel_when_explained(
    session: Session, jobs: dict[str, Job], console: Console
) -> dict[int, str]:
    """Cancel the jobs that can never run once their task has a reason; return the reasons."""
    reasons: dict[int, str] = {}
    for name, job in jobs.items():
        if not EXPECTATIONS[name].cancelled:
            continue
        try:
            reasons[job["id"]] = await_reason(session, job["id"])
            console.print(f"{name} is pending: {reasons[job['id']]}")
        finally:
            session.cancel_job(job["id"], reason="it has a pending reason")
    return reasons


def await_reason(session: Session, job_id: int) -> str:
    """Return the pending reason of a job's first task. Raises StillOpen if it has none."""
    for _ in beats(PollInterval(DEADLINE_SECONDS), f"the pending reason of job {job_id}"):
        for task in session.tasks(job_id, limit=1):
            if task["pending_reason"] and task["pending_reason"]["code"] == TOO_LARGE:
                return task["pending_reason"]["text"]
    raise StillOpen(f"job {job_id} never had a pending reason")


def result_table(jobs: list[Job], tasks: dict[int, list[Task]], reasons: dict[int, str]) -> Table:
    """The table of all tasks."""
    table = Table(title="examples", title_justify="left")
    for column in ("job", "task", "state", "cell", "exit code", "seconds", "result"):
        table.add_column(column, justify="right" if column in ("exit code", "seconds") else "left")
    for job in jobs:
        for task in tasks[job["id"]]:
            seconds = seconds_between(task["started_at"], task["finished_at"])
            waited = reasons.get(job["id"])
            table.add_row(
                job["name"],
                f"{task['group']}.{task['index']}",
                state_text(task["state"]),
                Text(task["cell_id"] or "-", style="" if task["cell_id"] else CELL_COLOURS["LOST"]),
                "-" if task["exit_code"] is None else str(task["exit_code"]),
                "-" if seconds is None else f"{seconds:.2f}",
                f"was pending: {waited}" if waited else note(task),
            )
    return table


if __name__ == "__main__":
    sys.exit(main())
