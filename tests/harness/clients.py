"""Programs that drive Cellrun, each kind in an environment of its own in `.tools`.

`python -m tests.harness.clients` installs them. Their pinned requirements conflict with those of
Cellrun and with one another: each is a dependency group with a file of requirements.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

from tests.architecture.source import ROOT

KINDS = ("slurm-clients", "airflow", "prefect")
"""The clients that tests need. A benchmark installs its peer, `hyperqueue`, in the same way."""

COMMANDS = ("sbatch", "squeue", "sacct", "scancel", "sinfo", "scontrol", "srun")


def installed_clients(kind: str) -> Path:
    """Return the folder of their programs; install them unless the pinned ones are there."""
    requirements = ROOT / "requirements" / f"{kind}.txt"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    mark = hashlib.sha256(requirements.read_bytes() + version.encode()).hexdigest()
    folder = ROOT / ".tools" / kind
    folder.parent.mkdir(exist_ok=True)
    stamp = folder / "installed"
    # Two test processes may want them at once.
    with (folder.parent / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != mark:
            print(f"installing {requirements.relative_to(ROOT)} into {folder.relative_to(ROOT)}")
            venv.create(folder, clear=True, with_pip=True)
            options = ["-q", "--disable-pip-version-check", "--require-hashes", "--requirement"]
            program = str(folder / "bin" / "python")
            command = [program, "-m", "pip", "install", *options, str(requirements)]
            subprocess.run(command, check=True)
            stamp.write_text(mark)
    return folder / "bin"


def link_commands(folder: Path) -> Path:
    """Return the folder, with links to the commands of Slurm and nothing else of this environment.

    A folder of programs with this environment's Python would replace that of the clients.
    """
    folder.mkdir()
    for name in (*COMMANDS, "cellrun"):
        (folder / name).symlink_to(Path(sys.executable).parent / name)
    return folder


def path_with(*folders: Path) -> str:
    """Return a PATH on which these folders come first."""
    return os.pathsep.join([*map(str, folders), os.environ["PATH"]])


if __name__ == "__main__":
    for wanted in KINDS:
        installed_clients(wanted)
