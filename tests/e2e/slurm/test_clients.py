"""Real clients of Slurm, unchanged from the package index, drive Cellrun by the commands of slurm/.

The stack runs plain processes; its cells and the clients share the folders of this machine.
"""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from cellrun import Session
from tests.e2e.stack import RunningStack, open_folder, remnants, wait_until
from tests.e2e.work import session_of
from tests.harness.clients import installed_clients, link_commands, path_with

pytestmark = pytest.mark.stack

HERE = Path(__file__).parent
PARTS = 48
FEWER_PARTS = 16
SECONDS = 900
"""A job of Snakemake starts Snakemake twice, which takes seconds on a busy machine."""

SLURM = ["--executor", "slurm", "--slurm-init-seconds-before-status-checks", "5"]
GENERIC = [
    *("--executor", "cluster-generic", "--max-status-checks-per-second", "10"),
    *("--cluster-generic-submit-cmd", "sbatch --parsable --mem=700 --time=10"),
    *("--cluster-generic-status-cmd", "cellrun status --short"),
    *("--cluster-generic-cancel-cmd", "scancel", "--cluster-generic-cancel-nargs", "20"),
]


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    with open_folder() as folder:
        with RunningStack(folder / "home", cells=2, engine="process") as running:
            yield running
        assert remnants(running.home) == []


@pytest.fixture(scope="module")
def session(stack: RunningStack) -> Iterator[Session]:
    with session_of(stack) as session:
        yield session


@pytest.fixture(scope="module")
def clients() -> Path:
    return installed_clients("slurm-clients")


@pytest.fixture(scope="module")
def environment(stack: RunningStack, clients: Path) -> Mapping[str, str]:
    """What a submitter's shell has: the commands, the clients, the address and the token."""
    own = stack.home.parent / "submitter"
    own.mkdir()
    given = {name: stack.environment[name] for name in ("CELLRUN_URL", "CELLRUN_TOKEN")}
    path = path_with(link_commands(own / "bin"), clients)
    return given | {"PATH": path, "HOME": str(own), "LANG": "C.UTF-8"}


@pytest.fixture
def folder(stack: RunningStack, request: pytest.FixtureRequest) -> Path:
    """A shared folder of the test, with the workflow."""
    folder = stack.home.parent / request.node.name
    folder.mkdir()
    shutil.copy(HERE / "Snakefile", folder)
    return folder


def run(command: list[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Return the output of a command that succeeds."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_parsl_runs_a_thousand_apps_on_two_jobs(
    clients: Path, environment: Mapping[str, str], folder: Path, session: Session
) -> None:
    printed = run(
        [str(clients / "python"), str(HERE / "parsl_apps.py"), str(folder / "runs")],
        folder,
        environment,
    )

    seen = json.loads(printed.splitlines()[-1])
    assert seen["count"] == 1000
    assert seen["sum"] == sum(number * number for number in range(1000))
    assert len(seen["jobs"]) == 2
    assert set(seen["used"]) <= set(seen["jobs"])
    assert seen["states"] == ["RUNNING", "RUNNING"]
    assert seen["after"] == ["CANCELLED", "CANCELLED"]
    for job in seen["jobs"]:
        ended = session.wait(int(job), deadline_seconds=60)
        assert ended["state"] == "KILLED"


def test_jobs_end_in_the_states_of_slurm(environment: Mapping[str, str], folder: Path) -> None:
    def submit(*words: str) -> str:
        return run(["sbatch", "--parsable", "--mem=50", *words], folder, environment).strip()

    def states() -> dict[str, str]:
        lines = run(["sacct", "-nXP", "-o", "jobid,state"], folder, environment).splitlines()
        return dict(line.split("|") for line in lines)

    good = submit("--wrap", "echo in $SLURM_JOB_ID")
    array = submit("-a", "1-5:2", "--wrap", "[ $SLURM_ARRAY_TASK_ID != 3 ]")
    slow = submit("-t", "0:01", "--wrap", "sleep 600")
    mixed = submit("-a", "0,600", "-t", "0:02", "--wrap", "sleep $SLURM_ARRAY_TASK_ID")
    after, never = (submit("-d", f"afterok:{job}", "--wrap", "true") for job in (good, array))
    cancelled = submit("--wrap", "sleep 600")
    run(["scancel", cancelled], folder, environment)
    expected = {
        good: "COMPLETED",
        f"{array}_1": "COMPLETED",
        f"{array}_3": "FAILED",
        f"{array}_5": "COMPLETED",
        slow: "TIMEOUT",
        f"{mixed}_0": "COMPLETED",
        f"{mixed}_600": "TIMEOUT",
        after: "COMPLETED",
        never: "CANCELLED",
        cancelled: "CANCELLED",
    }

    wait_until(lambda: expected.items() <= states().items(), seconds=120, what=str(expected))
    assert (folder / f"slurm-{good}.out").read_text() == f"in {good}\n"


def test_limit_of_an_array_is_kept(
    environment: Mapping[str, str], folder: Path, session: Session
) -> None:
    script = "mkdir one && sleep 0.3 && rmdir one"
    words = ["--mem=50", "-c", "1", "-a", "1-4%1", "--wrap", script]
    job = run(["sbatch", "--parsable", *words], folder, environment)
    ended = session.wait(int(job), deadline_seconds=120)
    # The folder of a second task at once would exist already.
    assert ended["state"] == "SUCCEEDED"


def test_submission_outlives_a_restart_of_the_web_process(
    stack: RunningStack, environment: Mapping[str, str], folder: Path, session: Session
) -> None:
    stack.kill("web")
    job = run(["sbatch", "--parsable", "--mem=50", "--wrap=true"], folder, environment)
    ended = session.wait(int(job), deadline_seconds=60)
    assert ended["state"] == "SUCCEEDED"


def test_snakemake_with_the_plugin_for_slurm_is_killed_and_resumed(
    clients: Path, environment: Mapping[str, str], folder: Path
) -> None:
    snakemake = [str(clients / "snakemake"), "--jobs", "8", *SLURM]
    kill_in_the_middle(snakemake, folder, environment, PARTS)
    # This plugin forgets what it had submitted: those jobs would run beside the resumed ones.
    run(["scancel", "--me"], folder, environment)
    wait_until(
        lambda: run(["squeue", "--me", "--noheader"], folder, environment) == "",
        seconds=60,
        what="no job of the killed workflow is open",
    )

    resume_and_check(snakemake, folder, environment, PARTS)


@pytest.mark.parametrize("parts", [FEWER_PARTS, pytest.param(PARTS, marks=pytest.mark.soak)])
def test_snakemake_with_three_commands_is_killed_and_resumed(
    clients: Path, environment: Mapping[str, str], folder: Path, parts: int
) -> None:
    snakemake = [str(clients / "snakemake"), "--jobs", "8", *GENERIC]
    kill_in_the_middle(snakemake, folder, environment, parts)

    # Its jobs continue, and the resumed workflow waits for them by their ids.
    resume_and_check(snakemake, folder, environment, parts)


def resume_and_check(
    command: list[str], folder: Path, environment: Mapping[str, str], parts: int
) -> None:
    """Resume a killed workflow: all its parts are there, and none that was finished ran again."""
    finished = finished_parts(folder)
    before = len(runs_of(folder))
    run([command[0], "--unlock"], folder, environment)

    run([*command, "--rerun-incomplete", *of_parts(parts)], folder, environment)

    assert (folder / "total.txt").read_text().strip() == str(sum(range(parts)))
    assert set(runs_of(folder)) == {str(number) for number in range(parts)}
    assert not finished & set(runs_of(folder)[before:]), "a finished part ran again"


def of_parts(parts: int) -> list[str]:
    """Return the options for a workflow of so many parts."""
    return ["--config", f"parts={parts}"]


def kill_in_the_middle(
    command: list[str], folder: Path, environment: Mapping[str, str], parts: int
) -> None:
    """Run a workflow, and kill it with -9 once it has recorded some parts, but not all."""
    with (folder / "first.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *of_parts(parts)],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def is_in_the_middle() -> bool:
        assert process.poll() is None, (folder / "first.log").read_text()
        return len(finished_parts(folder)) >= 6

    try:
        wait_until(is_in_the_middle, seconds=SECONDS, what="some parts are finished")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert len(finished_parts(folder)) < parts


def finished_parts(folder: Path) -> set[str]:
    """Return the numbers of the parts that the first run of Snakemake recorded as finished."""
    log = (folder / "first.log").read_text()
    return set(re.findall(r"Finished jobid: \d+ \(Rule: part_(\d+)\)", log))


def runs_of(folder: Path) -> list[str]:
    """Return the numbers of the parts in the order in which they ran."""
    return (folder / "runs.txt").read_text().split()
