"""`cellrun submit` and `cellrun run`: submit a job from a file or from command-line options."""

import re
import secrets
from typing import Annotated, Any

import typer

from cellrun.api.session import Session, connect
from cellrun.commands.jobs.interrupt import prompt_at_interrupt
from cellrun.commands.jobs.watch import end_of, follow, print_end, wait_for
from cellrun.display.forecast import forecast
from cellrun.display.output import TABLE, Output, OutputOption, show, show_document
from cellrun.display.terminal import Deadline
from cellrun.documents import Job
from cellrun.errors import EXIT_FAILED, EXIT_TROUBLE, BadInput, InvalidJob
from cellrun.spec_file import apply_change, read_spec
from cellrun.sweeps import expand_sweep, read_array_file, read_matrix
from cellrun.task_options import read_concurrency, read_constraint, read_resource
from controlplane.spec import InvalidSpec, parse_job

Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Set a field of the job: groups.0.replicas=3."
    ),
]

NamedResources = Annotated[
    list[str] | None,
    typer.Option("--resource", metavar="NAME=NUMBER", help="A named resource or token."),
]
KeyAndLimit = Annotated[
    str | None,
    typer.Option(
        metavar="KEY=LIMIT",
        help="Wait while so many tasks with the key, of all jobs of the project, are on cells.",
    ),
]


def submit(
    file: Annotated[
        str, typer.Argument(metavar="FILE|-", help="A job in YAML or JSON; - is standard input.")
    ],
    changes: Changes = None,
    matrix: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE,VALUE",
            help="Run the job for each of these values of an environment variable; repeatable:"
            " all combinations.",
        ),
    ] = None,
    array_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.csv",
            help="Run the job for each row of a CSV file, whose first line has the names of"
            " environment variables.",
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the job has ended.")] = False,
    follow_logs: Annotated[
        bool, typer.Option("--follow", help="Print its output until it has ended.")
    ] = False,
    deadline: Deadline = None,
    only_validate: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Show where its tasks would be placed now, or why they would wait."
        ),
    ] = False,
    output: OutputOption = TABLE,
) -> None:
    """Submit a job. With --wait or --follow, exit with 0 only if it SUCCEEDED.

    --matrix and --array-file make a group of each combination or row. A task that fails does not
    end the others then, unless the job has max_task_failures or min_available.
    """
    spec = _read_sweep(read_spec(file, changes or ()), matrix, array_file)
    if only_validate and (wait or follow_logs):
        raise BadInput("--dry-run submits nothing: omit --wait and --follow")
    with connect() as session:
        if only_validate:
            document = session.dry_run(spec)
            show(output, document, forecast(document))
            return
        job = session.submit(spec)
        if not (wait or follow_logs):
            show(output, job, f"job {job['id']} ({job['name']}) is {job['state'].lower()}")
            return
        job_id = job["id"]

        def wait_until_end() -> Job:
            if follow_logs:
                return follow(session, job_id, deadline, quiet_stdout=output.is_document)
            return wait_for(session, [job_id], deadline)[0]

        job = prompt_at_interrupt(session, job, wait_until_end)
        if output.is_document:
            show_document(output, job)
        end_of(session, job)


def validate(
    file: Annotated[
        str, typer.Argument(metavar="FILE|-", help="A job in YAML or JSON; - is standard input.")
    ],
    changes: Changes = None,
    output: OutputOption = TABLE,
) -> None:
    """Check the fields of a job without a server; `submit --dry-run` also checks what fits."""
    spec = read_spec(file, changes or ())
    try:
        job = parse_job(spec)
    except InvalidSpec as refused:
        faults = [{"field": fault.field, "detail": fault.detail} for fault in refused.faults]
        if output.is_document:
            show_document(output, faults)
            raise typer.Exit(EXIT_TROUBLE) from None
        raise InvalidJob(file, faults) from None
    groups, tasks = len(job.groups), job.total_replicas()
    counts = f"{groups} group{'s' * (groups != 1)}, {tasks} task{'s' * (tasks != 1)}"
    show(output, [], f"{file}: job {job.name} is valid ({counts})")


def run(
    words: Annotated[
        list[str], typer.Argument(metavar="IMAGE -- CMD…", help="The image, then the command.")
    ],
    cpu: Annotated[float | None, typer.Option(min=0, help="CPU cores of a task.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory of a task, for example 64Mi.")] = None,
    disk: Annotated[str | None, typer.Option(help="Disk of a task, for example 1Gi.")] = None,
    gpu: Annotated[int | None, typer.Option(min=0, help="GPUs of a task.")] = None,
    named: NamedResources = None,
    constraint: Annotated[
        list[str] | None,
        typer.Option(help="Required label: zone=a, zone=a,b, zone!=a, gb>=64, ssd, !ssd."),
    ] = None,
    prefer: Annotated[
        list[str] | None, typer.Option(help="Preferred label of the cell, as --constraint.")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Placement tag.")] = None,
    replicas: Annotated[int, typer.Option(min=1, help="Number of tasks.")] = 1,
    name: Annotated[
        str | None, typer.Option(help="Name of the job; default: after the image.")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Environment variable.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(help="Time limit in seconds.")] = None,
    pool: Annotated[str | None, typer.Option(help="Name of the pool.")] = None,
    concurrency: KeyAndLimit = None,
    process: Annotated[
        bool,
        typer.Option("--process", help="Run a process without an image: run --process -- CMD…"),
    ] = False,
    changes: Changes = None,
    is_detached: Annotated[
        bool,
        typer.Option("-d", "--detach", help="Print the id of the job, and do not wait for it."),
    ] = False,
    deadline: Deadline = None,
    output: OutputOption = TABLE,
) -> None:
    """Run a command, print its output, and exit with its exit code.

    Ctrl-C asks whether to cancel the job; without a terminal it cancels the job.
    """
    if is_detached and deadline is not None:
        raise BadInput("--deadline: not together with --detach, which does not wait")
    image, command = (None, words) if process else (words[0], words[1:])
    resources = {"cpu": cpu, "memory": memory, "disk": disk, "gpu": gpu}
    resources |= dict(read_resource(item) for item in named or ())
    constraints = [read_constraint(item) for item in constraint or ()]
    constraints += [read_constraint(item, required=False) for item in prefer or ()]
    spec: dict[str, Any] = {
        "name": name or _name_after(image or command[0]),
        "image": image,
        "task_type": "process" if process else None,
        "command": command or None,
        "replicas": replicas,
        "env": dict(_split(item) for item in env or ()) or None,
        "resources": {k: v for k, v in resources.items() if v is not None} or None,
        "constraints": constraints or None,
        "placement_tags": tag or None,
        "timeout_seconds": timeout,
        "pool": pool,
        "concurrency": None if concurrency is None else read_concurrency(concurrency),
    }
    spec = {field: value for field, value in spec.items() if value is not None}
    for change in changes or ():
        apply_change(spec, change)
    _run_job(spec, deadline, is_detached=is_detached, output=output)


def _run_job(
    spec: dict[str, Any], deadline: float | None, *, is_detached: bool, output: Output
) -> None:
    """Submit a job, follow it unless it is detached, and exit with its exit code."""
    with connect() as session:
        job = session.submit(spec)
        job_id = job["id"]
        if is_detached:
            show(output, job, str(job_id))
            return
        job = prompt_at_interrupt(
            session,
            job,
            lambda: follow(session, job_id, deadline, quiet_stdout=output.is_document),
            cancels=True,
        )
        code = _exit_code(session, job)
    if output.is_document:
        show_document(output, job)
    raise typer.Exit(code)


def _read_sweep(
    spec: dict[str, Any], matrix: list[str] | None, array_file: str | None
) -> dict[str, Any]:
    if matrix and array_file:
        raise BadInput("--matrix: not together with --array-file")
    if matrix:
        return expand_sweep(spec, read_matrix(matrix))
    return expand_sweep(spec, read_array_file(array_file)) if array_file else spec


def _exit_code(session: Session, job: Job) -> int:
    """Return the first exit code other than 0 of the tasks; 1 if the job failed without one."""
    if job["state"] == "SUCCEEDED":
        return 0
    print_end(session, job)
    failed = next((task for task in session.tasks(job["id"]) if task["exit_code"]), None)
    return failed["exit_code"] or EXIT_FAILED if failed else EXIT_FAILED


def _name_after(word: str) -> str:
    """Return a unique name: the last part of the image's or program's name, and four characters."""
    last = word.rsplit("/", 1)[-1].split("@")[0].split(":")[0].lower()
    clean = re.sub(r"[^a-z0-9._-]", "-", last).lstrip("._-")[:50] or "run"
    return f"{clean}-{secrets.token_hex(2)}"


def _split(item: str) -> tuple[str, str]:
    name, found, value = item.partition("=")
    if not found or not name:
        raise BadInput(f"--env {item!r}: expected NAME=VALUE")
    return name, value
