"""`srun`: inside a job, run a command as its only task; elsewhere it is refused.

It replaces itself with the command, so that signals and the exit code are the command's.
"""

import os
from collections.abc import Sequence

from slurm_commands.options import Option, OptionTable, Refused
from slurm_commands.programs.entry import run
from slurm_commands.values import read_count, read_gpus, require_one

OPTIONS = OptionTable(
    (
        Option("ntasks", "n"),
        Option("nodes", "N"),
        Option("cpus-per-task", "c"),
        Option("cpu-bind"),
        Option("gpus", "G"),
        Option("unbuffered", "u", takes_value=False),
    )
)
# Values of --cpu-bind that demand nothing: no binding, and whether it is printed.
_NO_BINDING = frozenset({"q", "quiet", "none", "no"})


def run_step(words: Sequence[str]) -> None:
    """Replace this process with the command of a command line. Raise Refused."""
    given, command = OPTIONS.parse(words)
    if "SLURM_JOB_ID" not in os.environ:
        raise Refused("works only inside a job: use sbatch, or `cellrun run --process`")
    if not command:
        raise Refused("No command given to execute.")
    for name in ("ntasks", "nodes"):
        if name in given:
            require_one(given[name], f"--{name}")
    cpus = read_count(given.get("cpus-per-task", "1"), "--cpus-per-task")
    if cpus > int(os.environ.get("SLURM_CPUS_PER_TASK", cpus)):
        raise Refused(f"--cpus-per-task={cpus}: the job has {os.environ['SLURM_CPUS_PER_TASK']}")
    gpus = read_gpus(given.get("gpus", "0"), "--gpus")
    if gpus > int(os.environ.get("SLURM_GPUS", gpus)):
        raise Refused(f"--gpus={gpus}: the job has {os.environ['SLURM_GPUS']}")
    if given.get("cpu-bind", "none") not in _NO_BINDING:
        raise Refused(f"--cpu-bind={given['cpu-bind']}: binding to cores is not supported")
    try:
        os.execvp(command[0], command)
    except OSError as fault:
        raise Refused(f"{command[0]}: {(fault.strerror or 'cannot be run').lower()}") from None


def main() -> None:
    """Run `srun`."""
    run("srun", run_step)
