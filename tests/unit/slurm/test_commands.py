"""The commands against a server: what they send, print and return."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_commands.programs import sacct, sbatch, scancel, scontrol, sinfo, squeue, srun
from slurm_commands.states import state_of
from tests.unit.client.documents import a_cell, a_job, a_pool, a_task
from tests.unit.client.stub_server import Api

JOBS, SUBMIT = "GET /api/v1/jobs", "POST /api/v1/jobs"


def job_of(job_id: int, **changes: Any) -> Any:
    counts = {"main": {"phase": {"RUNNING": 1}}}
    labels = {"slurm/name": "My Job"} | changes.pop("labels", {})
    return a_job(id=job_id, task_status_count=counts, labels=labels, **changes)


def page(*rows: Any) -> dict[str, Any]:
    return {"results": list(rows), "next": None}


def queries(api: Api, call: str) -> list[str]:
    return [query for name, query, _, _ in api.requests if name == call]


def test_submission_prints_the_sentence_of_slurm(api: Api, command: Any) -> None:
    api.answer(SUBMIT, job_of(12), status=201)
    assert command(sbatch.main, "--wrap=true") == (0, "Submitted batch job 12\n", "")
    [(_, _, _, document)] = api.requests
    assert document["guid"].startswith("sbatch-")


def test_parsable_submission_prints_the_id(api: Api, command: Any) -> None:
    api.answer(SUBMIT, job_of(12), status=201)
    assert command(sbatch.main, "--parsable", "--wrap=true") == (0, "12\n", "")


def test_refused_option_sends_nothing(api: Api, command: Any) -> None:
    code, printed, error = command(sbatch.main, "--wrap=true", "--qos=late")
    assert (code, printed) == (1, "")
    assert error.startswith("sbatch: error: --qos is not supported")
    assert api.requests == []


def test_refusal_of_the_server_is_printed(api: Api, command: Any) -> None:
    api.answer(SUBMIT, {"title": "Invalid", "detail": "no pool gpu"}, status=422)
    code, _, error = command(sbatch.main, "--wrap=true")
    assert code == 1
    assert "no pool gpu" in error


def test_submission_is_repeated_with_its_guid(
    api: Api, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_commands.programs.server.PAUSES_SECONDS", (0.0,))
    api.answer(SUBMIT, {}, status=503)
    api.answer(SUBMIT, job_of(12), status=201)
    assert command(sbatch.main, "--parsable", "--wrap=true")[:2] == (0, "12\n")
    first, second = (sent for _, _, _, sent in api.requests)
    assert first == second


def test_parsl_reads_two_columns_of_sacct(api: Api, command: Any) -> None:
    api.answer(JOBS, page(job_of(13, state="SUCCEEDED"), job_of(12)))
    words = ["-X", "--noheader", "--format=jobid,state%20", "--job", "12,13"]
    code, printed, _ = command(sacct.main, *words)
    assert code == 0
    assert [line.split() for line in printed.splitlines()] == [
        ["13", "COMPLETED"],
        ["12", "RUNNING"],
    ]
    assert queries(api, JOBS)[0].startswith("id=13%2C12")


def test_parsl_reads_two_columns_of_squeue(api: Api, command: Any) -> None:
    api.answer(JOBS, page(job_of(12, state="PENDING")))
    words = ["--noheader", "--format=%i %t", "--job", "12"]
    assert command(squeue.main, *words) == (0, "12 PD\n", "")


def test_snakemake_reads_jobs_by_name(api: Api, command: Any) -> None:
    api.answer(JOBS, page(job_of(12)))
    words = ["-X", "--parsable2", "--clusters", "all", "--noheader", "--format=JobIdRaw,State"]
    words += ["--starttime", "2026-11-18T00:00", "--endtime", "now", "--name", "My Job"]
    api.answer("GET /api/v1/whoami", {"user": "ann"})
    assert command(sacct.main, *words)[1] == "12|RUNNING\n"
    assert "label=slurm%2Fname%3DMy+Job" in queries(api, JOBS)[0]
    words = ["--format=%i|%T", "--states=all", "--noheader", "--name", "My Job"]
    assert command(squeue.main, *words)[1] == "12|RUNNING\n"


def test_jobs_before_the_start_time_are_left_out(api: Api, command: Any) -> None:
    api.answer(JOBS, page(job_of(12, created_at="2026-11-20T12:00:00Z")))
    words = ["-n", "-P", "-a", "-o", "jobid", "-S"]
    assert command(sacct.main, *words, "2026-11-18")[1] == "12\n"
    assert command(sacct.main, *words, "2026-11-22")[1] == ""


def test_array_has_a_line_for_each_task(api: Api, command: Any) -> None:
    array = job_of(12, labels={"slurm/array": "3,7-8", "slurm/seconds": "60"})
    api.answer(JOBS, page(array))
    tasks = [
        a_task(index=0, state="SUCCEEDED", exit_code=0, cell_id="c1"),
        a_task(index=1, state="FAILED", exit_code=124, failure_reason="exit status 124"),
        a_task(index=2, state="PENDING", exit_code=None, cell_id=None),
    ]
    for task in tasks:
        task["job"] = 12
    api.answer("GET /api/v1/tasks", page(*tasks))
    words = ["-n", "-P", "-X", "-o", "jobid,state,exitcode", "-j"]
    assert command(sacct.main, *words, "12")[1].splitlines() == [
        "12_3|COMPLETED|0:0",
        "12_7|TIMEOUT|124:0",
        "12_8|PENDING|0:0",
    ]
    assert command(sacct.main, *words, "12_7")[1] == "12_7|TIMEOUT|124:0\n"
    # Of an array that is open, squeue lists the open tasks.
    assert command(squeue.main, "-h", "-o", "%i")[1] == "12_8\n"


def test_tasks_of_many_jobs_are_one_request(api: Api, command: Any) -> None:
    api.answer(JOBS, page(*(job_of(number, state="FAILED") for number in (13, 12))))
    reasons = {13: "out of memory", 12: "exit status 1"}
    tasks = [
        a_task(state="FAILED", failure_reason=text) | {"job": n} for n, text in reasons.items()
    ]
    api.answer("GET /api/v1/tasks", page(*tasks))
    printed = command(sacct.main, "-n", "-P", "-o", "jobid,state", "-j", "12,13")[1]
    assert printed == "13|OUT_OF_MEMORY\n12|FAILED\n"
    assert len(api.requests) == 2


@pytest.mark.parametrize(
    ("state", "reason", "code", "name"),
    [
        ("PENDING", "", "PD", "PENDING"),
        ("ASSIGNED", "", "CF", "CONFIGURING"),
        ("BUILDING", "", "CF", "CONFIGURING"),
        ("RUNNING", "", "R", "RUNNING"),
        ("SUCCEEDED", "", "CD", "COMPLETED"),
        ("FAILED", "exit status 1", "F", "FAILED"),
        ("FAILED", "out of memory", "OOM", "OUT_OF_MEMORY"),
        ("KILLED", "exceeded its time limit", "TO", "TIMEOUT"),
        ("KILLED", "task was cancelled", "CA", "CANCELLED"),
        ("WORKER_FAILED", "cell disappeared", "NF", "NODE_FAIL"),
        ("PREEMPTED", "", "PR", "PREEMPTED"),
        ("UNSCHEDULABLE", "", "DL", "DEADLINE"),
    ],
)
def test_state_has_the_names_of_slurm(state: str, reason: str, code: str, name: str) -> None:
    found = state_of(job_of(12), a_task(state=state, failure_reason=reason))
    assert (found.code, found.name) == (code, name)


def test_running_job_whose_task_is_assigned_is_configuring() -> None:
    job = a_job(state="RUNNING", task_status_count={"main": {"phase": {"BUILDING": 1}}}, labels={})
    assert state_of(job).name == "CONFIGURING"
    assert state_of(job).base == "PENDING"


def test_cancellation_passes_over_jobs_that_have_ended(api: Api, command: Any) -> None:
    api.answer("POST /api/v1/jobs/12/cancel", job_of(12))
    api.answer("POST /api/v1/jobs/13/cancel", {"title": "Conflict"}, status=409)
    assert command(scancel.main, "12", "13") == (0, "", "")
    assert [name for name, *_ in api.requests] == [
        "POST /api/v1/jobs/12/cancel",
        "POST /api/v1/jobs/13/cancel",
    ]


def test_cancellation_of_an_unknown_job_is_an_error(api: Api, command: Any) -> None:
    code, _, error = command(scancel.main, "99")
    assert (code, error) == (
        1,
        "scancel: error: Kill job error on job id 99: Invalid job id specified\n",
    )


def test_cancellation_of_one_array_task_cancels_nothing(api: Api, command: Any) -> None:
    code, _, error = command(scancel.main, "12", "13_2")
    assert code == 1
    assert "13_2" in error
    assert api.requests == []


def test_cancellation_by_filters_lists_the_open_jobs(api: Api, command: Any) -> None:
    api.answer("GET /api/v1/whoami", {"user": "ann"})
    api.answer(JOBS, page(job_of(12)))
    api.answer("POST /api/v1/jobs/12/cancel", job_of(12))
    assert command(scancel.main, "--me", "-n", "My Job")[0] == 0
    assert "owner=ann" in queries(api, JOBS)[0]
    assert "state=PENDING%2CRUNNING" in queries(api, JOBS)[0]


def test_partitions_are_pools(api: Api, command: Any) -> None:
    api.answer("GET /api/v1/pools", page(a_pool(name="default"), a_pool(name="gpu")))
    api.answer("GET /api/v1/cells", page(a_cell(name="c1", pool="default", state="READY")))
    assert command(sinfo.main, "-o", "%P")[1] == "PARTITION\ndefault*\ngpu\n"
    assert "c1" in command(sinfo.main)[1]


def test_configuration_has_the_limits_that_clients_read(command: Any) -> None:
    printed = command(scontrol.main, "show", "config")[1]
    assert "MinJobAge               = 604800 sec" in printed
    assert "MaxArraySize            = 10001" in printed


def test_job_is_shown_with_its_facts(api: Api, command: Any) -> None:
    api.answer(JOBS, page(job_of(12)))
    api.answer("GET /api/v1/tasks", page(a_task(cell_id="c1", state="RUNNING") | {"job": 12}))
    printed = command(scontrol.main, "show", "job", "12")[1]
    assert "JobId=12 JobName=My Job" in printed
    assert "JobState=RUNNING" in printed
    assert "NodeList=c1" in printed


def test_cpus_of_a_job_with_a_large_document_are_known(api: Api, command: Any) -> None:
    api.answer(JOBS, page(job_of(12, spec=None, labels={"slurm/cpus": "4"})))
    assert command(sacct.main, "-n", "-P", "-o", "alloccpus", "-j", "12")[1] == "4\n"


def test_host_names_are_printed_one_a_line(command: Any) -> None:
    assert command(scontrol.main, "show", "hostnames", "c1,c2")[1] == "c1\nc2\n"


def test_hold_and_release_are_sent(api: Api, command: Any) -> None:
    api.answer("POST /api/v1/jobs/12/hold", job_of(12))
    api.answer("POST /api/v1/jobs/12/release", job_of(12))
    assert command(scontrol.main, "hold", "12")[0] == 0
    assert command(scontrol.main, "release", "12")[0] == 0
    assert [name for name, *_ in api.requests] == [
        "POST /api/v1/jobs/12/hold",
        "POST /api/v1/jobs/12/release",
    ]


def test_step_outside_a_job_is_refused(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    code, _, error = command(srun.main, "true")
    assert (code, "only inside a job" in error) == (1, True)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["-n", "2"], "--ntasks=2"),
        (["--nodes=2"], "--nodes=2"),
        (["-c", "9"], "--cpus-per-task=9"),
        (["-G", "2"], "--gpus=2"),
        (["--mpi=pmix"], "--mpi"),
        (["--cpu-bind=cores"], "--cpu-bind=cores"),
        ([], "no-such-program: no such file"),
    ],
)
def test_step_with_anything_else_is_refused(
    command: Any, monkeypatch: pytest.MonkeyPatch, words: list[str], named: str
) -> None:
    for name, value in (("JOB_ID", "12"), ("CPUS_PER_TASK", "2"), ("GPUS", "1")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    # A step replaces its process, which here is that of the tests.
    code, _, error = command(srun.main, *words, "no-such-program")
    assert code == 1
    assert named in error


def test_step_ends_as_its_command() -> None:
    program = [sys.executable, "-c", "from slurm_commands.programs.srun import main; main()"]
    words = ["-n1", "--cpu-bind=q", "--cpus-per-task=1", "--nodes=1", "sh", "-c", "echo $0; exit 3"]
    environment = {"SLURM_JOB_ID": "12", "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [*program, *words], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, "sh\n")


@pytest.mark.parametrize(
    ("main", "words", "named"),
    [
        (squeue.main, ["-o", "%Q"], "%Q"),
        (squeue.main, ["--start"], "--start"),
        (squeue.main, ["-t", "late"], "late"),
        (squeue.main, ["12"], "12"),
        (squeue.main, ["-j", "x"], "'x'"),
        (sacct.main, ["-o", "MaxRSS"], "MaxRSS"),
        (sacct.main, ["-M", "other"], "other"),
        (sacct.main, ["--brief"], "--brief"),
        (sacct.main, ["-S", "soon"], "--starttime=soon"),
        (sinfo.main, ["-o", "%Q"], "%Q"),
        (sinfo.main, ["-R"], "-R"),
        (scancel.main, ["--signal=USR1", "12"], "--signal"),
        (scancel.main, [], "No job identification"),
        (scancel.main, ["--me", "12"], "exclude"),
        (scancel.main, ["-t", "COMPLETED"], "COMPLETED"),
        (scontrol.main, ["update", "JobId=12"], "update"),
        (scontrol.main, [], "subcommand"),
        (scontrol.main, ["hold", "12_1"], "12_1"),
    ],
    ids=lambda value: None,
)
def test_other_options_of_the_lists_are_refused_by_name(
    api: Api, command: Any, main: Any, words: list[str], named: str
) -> None:
    code, printed, error = command(main, *words)
    assert (code, printed) == (1, "")
    assert named in error
    assert api.requests == []


def test_missing_settings_are_one_line(
    command: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("CELLRUN_URL", "CELLRUN_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    code, _, error = command(squeue.main)
    assert code == 1
    assert error.startswith("squeue: error: no server is configured")
