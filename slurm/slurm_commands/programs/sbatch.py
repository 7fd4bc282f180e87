"""`sbatch`: submit a script as a job and print its id."""

import sys
import uuid
from collections.abc import Sequence

from slurm_commands.job_document import build_document
from slurm_commands.options import Refused
from slurm_commands.programs.entry import run
from slurm_commands.programs.server import with_session
from slurm_commands.request import read_request


def submit(words: Sequence[str]) -> None:
    """Submit the script of a command line. Raise Refused before anything is sent."""
    request, is_parsable = read_request(words, _read_stdin)
    document = build_document(request, f"sbatch-{uuid.uuid4()}")
    # A repeated submission with the same guid is the same job.
    job = with_session(lambda session: session.submit(document))
    print(job["id"] if is_parsable else f"Submitted batch job {job['id']}")


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError:
        raise Refused("standard input is not a script in UTF-8") from None


def main() -> None:
    """Run `sbatch`."""
    run("sbatch", submit)
