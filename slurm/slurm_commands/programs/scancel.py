"""`scancel`: cancel jobs by id, or those that match filters."""

from collections.abc import Sequence

from cellrun import ApiError, Session
from slurm_commands.arrays import read_address
from slurm_commands.listing import Selection, find_jobs
from slurm_commands.options import Option, OptionTable, Refused, split_list
from slurm_commands.programs.entry import EXIT_TROUBLE, complain, run
from slurm_commands.programs.filters import FILTER_OPTIONS, read_filters
from slurm_commands.programs.server import with_session

OPTIONS = OptionTable(
    (*FILTER_OPTIONS, Option("state", "t"), Option("quiet", "Q", takes_value=False))
)
_STATES = {"PENDING": "PENDING", "PD": "PENDING", "RUNNING": "RUNNING", "R": "RUNNING"}
_OPEN = "PENDING,RUNNING"
_NOT_FOUND, _ENDED = 404, 409


def cancel(words: Sequence[str]) -> int:
    """Cancel the jobs of a command line; return 1 if one of the ids does not exist."""
    given, ids = OPTIONS.parse_mixed(words)
    states = [_read_state(name) for name in split_list(given, "state")]
    filters = {name: value for name, value in given.items() if name not in ("quiet", "state")}
    addresses = [read_address(word) for part in ids for word in part.split(",")]
    for address in addresses:
        if address.index is not None:
            raise Refused(
                f"{address.job_id}_{address.index}: one task of an array cannot be cancelled;"
                f" cancel the job {address.job_id}"
            )
    if addresses and (filters or states):
        raise Refused("ids and filters exclude each other")
    if not addresses and not filters and not states:
        raise Refused("No job identification provided")
    selection = read_filters(filters, states=",".join(states) or _OPEN)
    chosen = [address.job_id for address in addresses]
    return with_session(lambda session: _cancel(session, chosen, selection, "quiet" in given))


def _cancel(session: Session, ids: list[int], selection: Selection, is_quiet: bool) -> int:
    code = 0
    for job_id in ids or [job["id"] for job in find_jobs(session, selection)]:
        try:
            session.cancel_job(job_id, reason="scancel")
        except ApiError as fault:
            if fault.status == _ENDED:
                continue  # as in Slurm, a job that has ended is no error
            if fault.status != _NOT_FOUND:
                raise
            code = EXIT_TROUBLE
            if not is_quiet:
                text = f"Kill job error on job id {job_id}: Invalid job id specified"
                complain("scancel", text)
    return code


def _read_state(name: str) -> str:
    if name.upper() not in _STATES:
        raise Refused(f"--state={name}: only PENDING and RUNNING can be cancelled")
    return _STATES[name.upper()]


def main() -> None:
    """Run `scancel`."""
    run("scancel", cancel)
