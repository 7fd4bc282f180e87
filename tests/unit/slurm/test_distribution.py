"""The commands of Slurm are installed by a distribution of their own only."""

from importlib.metadata import distribution

COMMANDS = {"sbatch", "squeue", "sacct", "scancel", "sinfo", "scontrol", "srun"}


def scripts_of(name: str) -> set[str]:
    points = distribution(name).entry_points
    return {point.name for point in points if point.group == "console_scripts"}


def test_cellrun_installs_no_command_of_slurm() -> None:
    assert scripts_of("cellrun") == {"cellrun", "cellrun-cell"}


def test_distribution_of_its_own_installs_them() -> None:
    assert scripts_of("cellrun-slurm") == COMMANDS
