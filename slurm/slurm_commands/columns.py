"""Render fields of jobs for squeue, sacct and scontrol."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from slurm_commands.job_document import CPUS_LABEL, TIME_LABEL
from slurm_commands.listing import JobRow

_BIT_OF_A_SIGNAL = 128


def instant(text: str | None) -> str:
    """Return a time of the API in the local zone, as Slurm writes it."""
    if text is None:
        return "Unknown"
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%dT%H:%M:%S")


def duration(seconds: float, *, is_long: bool = False) -> str:
    """Return [days-]hours:minutes:seconds; without `is_long` leading zeros are left out."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}-{hour:02}:{minute:02}:{second:02}"
    if is_long:
        return f"{hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def elapsed_seconds(row: JobRow, now: datetime) -> float:
    """Return how long the task, or its job, has run."""
    source = row.task or row.job
    if not source["started_at"]:
        return 0.0
    end = datetime.fromisoformat(source["finished_at"]) if source["finished_at"] else now
    return max((end - datetime.fromisoformat(source["started_at"])).total_seconds(), 0.0)


def exit_code(row: JobRow) -> str:
    """Return status:signal. A status above 128 is that of a shell for a signal."""
    code = (row.task or {}).get("exit_code") or 0
    signal = code - _BIT_OF_A_SIGNAL
    return f"0:{signal}" if 0 < signal < 65 else f"{code}:0"


def reason(row: JobRow) -> str:
    """Return why it waits or how it ended, in Cellrun's words; None without one."""
    task = row.task or {}
    waits = task.get("pending_reason") or {}
    text = waits.get("code") or task.get("failure_reason") or row.job["failure_reason"]
    if not row.state.is_over and row.job["holds"]:
        text = "JobHeldUser"
    return str(text or "None")


def node(row: JobRow) -> str:
    """Return the cell of the newest attempt."""
    return str((row.task or {}).get("cell_id") or "")


def cpus(row: JobRow) -> str:
    """Return the requested number of CPUs: at least 1, also for a job that `cellrun` submitted."""
    requested = ((row.job["spec"] or {}).get("resources") or {}).get("cpu")
    return str(row.job["labels"].get(CPUS_LABEL) or f"{max(float(requested or 1), 1):g}")


def time_limit(row: JobRow) -> str:
    """Return the limit of the time, or UNLIMITED."""
    seconds = row.job["labels"].get(TIME_LABEL)
    return duration(int(seconds)) if seconds else "UNLIMITED"


def account(row: JobRow) -> str:
    """Return the project, with its domain unless that is the default one."""
    domain, project = row.job["domain"], row.job["project"]
    return str(project if domain == "default" else f"{domain}/{project}")


def array_text(row: JobRow) -> str:
    """Return the index of an array task, or N/A."""
    return "N/A" if row.index is None else str(row.index)


Field = Callable[[JobRow, datetime], str]

NEEDS_TASK = frozenset({"%N", "%R", "%r", "nodelist", "reason"})
"""Fields with facts of each task. The exit code is 0 unless a job failed, whose tasks are known."""

SQUEUE: Mapping[str, tuple[str, Field]] = {
    "%i": ("JOBID", lambda row, now: row.id),
    "%A": ("JOBID", lambda row, now: str(row.job["id"])),
    "%F": ("ARRAY_JOB_ID", lambda row, now: str(row.job["id"])),
    "%K": ("ARRAY_TASK_ID", lambda row, now: array_text(row)),
    "%t": ("ST", lambda row, now: row.state.code),
    "%T": ("STATE", lambda row, now: row.state.name),
    "%j": ("NAME", lambda row, now: row.name),
    "%P": ("PARTITION", lambda row, now: row.job["pool"]),
    "%u": ("USER", lambda row, now: row.job["owner"]),
    "%a": ("ACCOUNT", lambda row, now: account(row)),
    "%M": ("TIME", lambda row, now: duration(elapsed_seconds(row, now))),
    "%l": ("TIME_LIMIT", lambda row, now: time_limit(row)),
    "%V": ("SUBMIT_TIME", lambda row, now: instant(row.job["created_at"])),
    "%S": ("START_TIME", lambda row, now: instant((row.task or row.job)["started_at"])),
    "%D": ("NODES", lambda row, now: "1"),
    "%C": ("CPUS", lambda row, now: cpus(row)),
    "%k": ("COMMENT", lambda row, now: row.job["annotation"] or "(null)"),
    "%N": ("NODELIST", lambda row, now: node(row)),
    "%r": ("REASON", lambda row, now: reason(row)),
    "%R": ("NODELIST(REASON)", lambda row, now: node(row) or f"({reason(row)})"),
}

SACCT: Mapping[str, tuple[str, int, Field]] = {
    "jobid": ("JobID", 12, lambda row, now: row.id),
    "jobidraw": ("JobIDRaw", 12, lambda row, now: row.id),
    "jobname": ("JobName", 10, lambda row, now: row.name),
    "partition": ("Partition", 10, lambda row, now: row.job["pool"]),
    "account": ("Account", 10, lambda row, now: account(row)),
    "alloccpus": ("AllocCPUS", 10, lambda row, now: cpus(row)),
    "ncpus": ("NCPUS", 10, lambda row, now: cpus(row)),
    "nnodes": ("NNodes", 8, lambda row, now: "1"),
    "state": ("State", 10, lambda row, now: row.state.base),
    "exitcode": ("ExitCode", 8, lambda row, now: exit_code(row)),
    "user": ("User", 9, lambda row, now: row.job["owner"]),
    "cluster": ("Cluster", 10, lambda row, now: "cellrun"),
    "comment": ("Comment", 14, lambda row, now: row.job["annotation"]),
    "submit": ("Submit", 19, lambda row, now: instant(row.job["created_at"])),
    "start": ("Start", 19, lambda row, now: instant((row.task or row.job)["started_at"])),
    "end": ("End", 19, lambda row, now: instant((row.task or row.job)["finished_at"])),
    "elapsed": (
        "Elapsed",
        10,
        lambda row, now: duration(elapsed_seconds(row, now), is_long=True),
    ),
    "elapsedraw": ("ElapsedRaw", 10, lambda row, now: str(int(elapsed_seconds(row, now)))),
    "timelimit": ("Timelimit", 10, lambda row, now: time_limit(row)),
    "nodelist": ("NodeList", 15, lambda row, now: node(row) or "None assigned"),
    "reason": ("Reason", 22, lambda row, now: reason(row)),
}


def fit(text: str, width: int, *, is_left: bool, mark: str = "") -> str:
    """Return `text` in `width` columns; what was cut ends with `mark`."""
    if len(text) > width:
        text = text[: width - len(mark)] + mark
    return text.ljust(width) if is_left else text.rjust(width)


def utc_now() -> datetime:
    """Return the present instant."""
    return datetime.now(UTC)
