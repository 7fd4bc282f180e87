"""`scontrol`: show jobs, the configuration and host names; hold and release jobs."""

from collections.abc import Iterator, Sequence

from cellrun import Session
from slurm_commands.arrays import JobAddress, read_address
from slurm_commands.columns import (
    account,
    cpus,
    duration,
    elapsed_seconds,
    exit_code,
    instant,
    node,
    reason,
    time_limit,
    utc_now,
)
from slurm_commands.listing import JobRow, Selection, find_rows
from slurm_commands.options import Option, OptionTable, Refused
from slurm_commands.programs.entry import complain, run
from slurm_commands.programs.server import with_session

OPTIONS = OptionTable((Option("oneliner", "o", takes_value=False),))
_USAGE = "use show job ID, show config, show hostnames LIST, hold ID…, release ID…"
# For how long ended jobs are listed, unless their pool limits it: the default of Cellrun.
MIN_JOB_AGE_SECONDS = 604_800
# One more than the largest number of tasks of a job.
MAX_ARRAY_SIZE = 10_001


def control(words: Sequence[str]) -> int:
    """Run the subcommand of a command line."""
    given, rest = OPTIONS.parse_mixed(words)
    match rest:
        case ["show", "config"]:
            print(f"ClusterName             = cellrun\nMaxArraySize            = {MAX_ARRAY_SIZE}")
            print(f"MinJobAge               = {MIN_JOB_AGE_SECONDS} sec")
        case ["show", "hostnames", names]:
            print("\n".join(name for name in names.split(",") if name))
        case ["show", "job", text]:
            return _show_job(read_address(text), " " if "oneliner" in given else "\n   ")
        case ["hold" | "release" as verb, *ids] if ids:
            addresses = [read_address(word) for part in ids for word in part.split(",")]
            _require_whole_jobs(addresses)
            with_session(lambda session: _hold_or_release(session, verb, addresses))
        case _:
            raise Refused(f"{' '.join(rest) or 'no subcommand'}: is not supported; {_USAGE}")
    return 0


def _show_job(address: JobAddress, separator: str) -> int:
    selection = Selection(addresses=[address])
    rows = with_session(lambda session: find_rows(session, selection, with_tasks=True))
    for row in rows:
        print(separator.join(_facts(row)))
    return 0 if rows else complain("scontrol", "Invalid job id specified")


def _facts(row: JobRow) -> Iterator[str]:
    array = "" if row.index is None else f" ArrayJobId={row.job['id']} ArrayTaskId={row.index}"
    source = row.task or row.job
    yield f"JobId={row.id}{array} JobName={row.name}"
    yield f"UserId={row.job['owner']} Account={account(row)} Partition={row.job['pool']}"
    yield f"JobState={row.state.name} Reason={reason(row).replace(' ', '_')}"
    yield f"ExitCode={exit_code(row)} NumNodes=1 NumCPUs={cpus(row)} NumTasks=1"
    run_time = duration(elapsed_seconds(row, utc_now()), is_long=True)
    yield f"RunTime={run_time} TimeLimit={time_limit(row)}"
    yield f"SubmitTime={instant(row.job['created_at'])} StartTime={instant(source['started_at'])}"
    yield f"EndTime={instant(source['finished_at'])} NodeList={node(row) or '(null)'}"
    if row.job["annotation"]:
        yield f"Comment={row.job['annotation']}"


def _require_whole_jobs(addresses: Sequence[JobAddress]) -> None:
    for address in addresses:
        if address.index is not None:
            raise Refused(f"{address.job_id}_{address.index}: only whole jobs can be held")


def _hold_or_release(session: Session, verb: str, addresses: Sequence[JobAddress]) -> None:
    for address in addresses:
        if verb == "hold":
            session.hold_job(address.job_id, reason="scontrol hold")
        else:
            session.release_job(address.job_id, reason="scontrol release")


def main() -> None:
    """Run `scontrol`."""
    run("scontrol", control)
