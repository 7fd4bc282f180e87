"""The start script, run by a real shell: environment, folder, files of the output, array index."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slurm_commands.start_script import COMMAND
from tests.unit.slurm.conftest import Submission

PRINT = '#!/bin/sh\necho "$SLURM_JOB_ID $SLURM_ARRAY_TASK_ID $0" | cut -d/ -f1; echo oops >&2\n'


def start(
    document: dict[str, Any], root: Path, *, index: int = 0, attempt: int = 1
) -> subprocess.CompletedProcess[str]:
    """Run the command of a job as a cell runs a plain process, as job 12 on the cell c1."""
    for item in document["inputs"]:
        path = root / item["path"].lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(item["content"])
    environment = {
        "PATH": os.environ["PATH"],
        "CELLRUN_ROOT": str(root),
        "CELLRUN_JOB_ID": "12",
        "CELLRUN_CELL": "c1",
        "CELLRUN_TASK_INDEX": str(index),
        "CELLRUN_ATTEMPT_NUMBER": str(attempt),
    }
    return subprocess.run(
        document["command"], env=environment, cwd=root, capture_output=True, text=True, check=False
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root of an attempt"
    folder.mkdir()
    return folder


def test_output_and_errors_are_in_one_file_of_the_folder(
    submission: Submission, tmp_path: Path, root: Path
) -> None:
    document = submission(script=PRINT)
    assert document["command"] == COMMAND
    assert start(document, root).returncode == 0
    assert (tmp_path / "slurm-12.out").read_text() == "12  \noops\n"


def test_files_have_the_values_of_their_patterns(
    submission: Submission, tmp_path: Path, root: Path
) -> None:
    words = ["-J", "it's", "-a", "3-9:2", "-o", "o %x-%A_%a-%j%%.txt", "-e", "e-%J.txt"]
    start(submission(*words, script=PRINT), root, index=2)
    assert (tmp_path / "o it's-12_7-12_7%.txt").read_text() == "12_7 7 \n"
    assert (tmp_path / "e-12_7.txt").read_text() == "oops\n"


@pytest.mark.parametrize(("index", "expected"), [(0, "1"), (2, "7"), (3, "20"), (5, "31")])
def test_array_index_follows_from_the_position(
    submission: Submission, tmp_path: Path, root: Path, index: int, expected: str
) -> None:
    script = "#!/bin/sh\nenv\n"
    start(submission("-a", "1-7:3,20,30-31", "-o", "out", script=script), root, index=index)
    printed = dict(line.split("=", 1) for line in (tmp_path / "out").read_text().splitlines())
    assert printed["SLURM_ARRAY_TASK_ID"] == expected
    assert printed["SLURM_ARRAY_JOB_ID"] == "12"
    assert printed["SLURM_JOB_ID"] == f"12_{expected}"
    assert printed["SLURM_ARRAY_TASK_COUNT"] == "6"
    assert (printed["SLURM_ARRAY_TASK_MIN"], printed["SLURM_ARRAY_TASK_MAX"]) == ("1", "31")


def test_variables_of_slurm_are_set(submission: Submission, tmp_path: Path, root: Path) -> None:
    words = ["-c", "2", "--mem=100", "-G1", "-J", "x", "-p", "gpu", "-o", "out"]
    start(submission(*words, script="#!/bin/sh\nenv\n"), root)
    printed = dict(line.split("=", 1) for line in (tmp_path / "out").read_text().splitlines())
    expected = {
        "SLURM_JOB_ID": "12",
        "SLURM_CPUS_PER_TASK": "2",
        "SLURM_MEM_PER_NODE": "100",
        "SLURM_JOB_NODELIST": "c1",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_NTASKS": "1",
        "SLURM_GPUS": "1",
        "SLURM_JOB_NAME": "x",
        "SLURM_JOB_PARTITION": "gpu",
    }
    assert {name: printed[name] for name in expected} == expected
    assert not {"SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT"} & set(printed)


@pytest.mark.parametrize(
    ("export", "expected"),
    [
        (None, {"A": "it's", "B": "2"}),
        ("ALL", {"A": "it's", "B": "2"}),
        ("NONE", {}),
        ("A,C=3", {"A": "it's", "C": "3"}),
        ("ALL,B=4", {"A": "it's", "B": "4"}),
    ],
)
def test_environment_of_the_submitter_is_exported(
    submission: Submission,
    tmp_path: Path,
    root: Path,
    export: str | None,
    expected: dict[str, str],
) -> None:
    words = ["-o", "out"] + (["--export", export] if export else [])
    environ = {
        "A": "it's",
        "B": "2",
        "CELLRUN_TOKEN": "secret",
        "SLURM_JOB_ID": "1",
        "not a name": "x",
    }
    document = submission(*words, script="#!/bin/sh\nenv\n", environ=environ)
    start(document, root)
    printed = dict(line.split("=", 1) for line in (tmp_path / "out").read_text().splitlines())
    assert {name: printed[name] for name in "ABC" if name in printed} == expected
    assert printed["SLURM_JOB_ID"] == "12"
    assert "secret" not in str(document)


def test_job_runs_in_the_given_folder(submission: Submission, tmp_path: Path, root: Path) -> None:
    (tmp_path / "other").mkdir()
    start(submission("-D", "other", "-o", "out", script="#!/bin/sh\npwd\n"), root)
    assert (tmp_path / "other" / "out").read_text() == f"{tmp_path}/other\n"


def test_missing_folder_fails_the_job(submission: Submission, root: Path) -> None:
    done = start(submission("-D", "/nowhere/at/all"), root)
    assert done.returncode != 0
    assert "/nowhere/at/all" in done.stderr


def test_missing_folder_of_the_output_fails_the_job(submission: Submission, root: Path) -> None:
    done = start(submission("-o", "/nowhere/out"), root)
    assert done.returncode != 0
    assert "/nowhere/out" in done.stderr


def test_exit_code_is_that_of_the_script(submission: Submission, root: Path) -> None:
    assert start(submission(script="#!/bin/sh\nexit 3\n"), root).returncode == 3


def test_later_attempt_appends_to_the_output(
    submission: Submission, tmp_path: Path, root: Path
) -> None:
    script = "#!/bin/sh\necho $SLURM_RESTART_COUNT.\n"
    document = submission("-o", "out", script=script)
    (tmp_path / "out").write_text("of an earlier job\n")
    start(document, root)
    start(document, root, attempt=2)
    assert (tmp_path / "out").read_text() == ".\n1.\n"


def test_script_of_another_interpreter_runs(
    submission: Submission, tmp_path: Path, root: Path
) -> None:
    script = "#!/usr/bin/env python3\nimport sys\nprint(sys.argv[1:])\n"
    (tmp_path / "job.py").write_text(script)
    start(submission("-o", "out", "job.py", "a b", "$HOME"), root)
    assert (tmp_path / "out").read_text() == "['a b', '$HOME']\n"


def test_time_limit_of_an_array_ends_one_task(
    submission: Submission, tmp_path: Path, root: Path
) -> None:
    document = submission("-a", "0-1", "-t", "0:01", "-o", "out", script="#!/bin/sh\nsleep 60\n")
    assert start(document, root).returncode == 124
    # Cellrun's own limit would end the other tasks, so it only applies later.
    assert document["timeout_seconds"] > 1
