"""From a submission to its result on a whole stack: what submitter, operator and engine see."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from cellrun import Session
from cellrun.documents import Task
from tests.e2e.engine import EngineEvents, containers_of, remove_containers
from tests.e2e.stack import RunningStack, is_running, open_folder, remnants, wait_until
from tests.e2e.work import (
    SMALL,
    attempts_of,
    run_to_end,
    session_of,
    shell_job,
    sleepers,
    wait_for_end,
    whole_log,
)

pytestmark = [pytest.mark.stack, pytest.mark.engine]

CELLRUN = Path(sys.executable).parent / "cellrun"
UNTIL_TERM = "trap 'echo got TERM; exit 0' TERM; echo begun; while :; do sleep 0.1; done"


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    with open_folder() as folder:
        with RunningStack(folder / "home") as running:
            yield running
        remove_containers(running.installation)


@pytest.fixture
def session(stack: RunningStack) -> Iterator[Session]:
    with session_of(stack) as session:
        yield session


def cellrun(stack: RunningStack, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run the command as from a shell."""
    return subprocess.run(
        [str(CELLRUN), *words],
        env={"PATH": os.environ["PATH"], **stack.environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def wait_until_running(session: Session, job_id: int) -> Task:
    """The first task of a job, once it runs."""
    found: list[Task] = []

    def runs() -> bool:
        found[:] = [task for task in session.tasks(job_id) if task["state"] == "RUNNING"]
        return bool(found)

    wait_until(runs, seconds=30, what=f"a task of job {job_id} runs")
    return found[0]


def test_run_exits_with_the_code_of_its_task(stack: RunningStack) -> None:
    done = cellrun(stack, "run", "cellrun/demo:latest", "--", "sh", "-c", "echo out; exit 3")
    assert (done.returncode, done.stdout) == (3, "out\n"), done.stderr
    done = cellrun(stack, "run", "cellrun/demo:latest", "--", "sh", "-c", "echo fine >&2")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "fine" in done.stderr


def test_labels_of_a_container_name_job_task_and_attempt(
    stack: RunningStack, session: Session
) -> None:
    job_id = session.submit(shell_job(UNTIL_TERM, name="labelled"))["id"]
    task = wait_until_running(session, job_id)
    [container] = [
        row
        for row in containers_of(stack.installation)
        if row["Labels"].get("cellrun.task") == str(task["id"])
    ]
    expected = {
        "cellrun.installation": stack.installation,
        "cellrun.cell": task["cell_id"],
        "cellrun.job": str(job_id),
        "cellrun.job_name": "labelled",
        "cellrun.group": "main",
        "cellrun.task": str(task["id"]),
        "cellrun.attempt": task["attempt_uid"],
        "cellrun.gang": "",
        "cellrun.gpus": "",
        "cellrun.network": "tasks",
    }
    assert container["Labels"] == expected
    assert container["Names"] == [f"/cellrun-{task['attempt_uid']}"]
    session.cancel_job(job_id, force=True)
    wait_for_end(session, job_id)


def test_flower_shows_each_attempt_as_a_task(stack: RunningStack, session: Session) -> None:
    spec = shell_job('test "$CELLRUN_ATTEMPT_NUMBER" = 2', name="seen", retries={"failure": 1})
    job, task = run_to_end(session, spec)
    assert job["state"] == "SUCCEEDED"
    states = {1: "FAILURE", 2: "SUCCESS"}
    [attempts] = attempts_of(session, job["id"]).values()
    assert [attempt["number"] for attempt in attempts] == [1, 2]
    for attempt in attempts:
        shown = flower_task(stack, attempt["uid"])
        assert shown["name"] == "attempt.seen"
        assert shown["state"] == states[attempt["number"]]
        assert shown["worker"] == f"cell@{attempt['cell_id']}"
        assert f"task {task['id']}, attempt {attempt['number']}" in shown["kwargs"]


def flower_task(stack: RunningStack, uid: str) -> dict[str, str]:
    """A task as Flower's API shows it, once it does."""
    answers: list[dict[str, str]] = []

    def is_shown() -> bool:
        answer = requests.get(
            f"{stack.flower_url}/api/task/info/{uid}", auth=stack.flower_login, timeout=5
        )
        if answer.ok and answer.json()["state"] in ("SUCCESS", "FAILURE", "REVOKED"):
            answers.append(answer.json())
        return bool(answers)

    wait_until(is_shown, seconds=15, what=f"Flower shows {uid}")
    assert answers[0]["uuid"] == uid
    return answers[0]


def test_the_whole_log_is_served_as_soon_as_the_task_is_over(session: Session) -> None:
    script = "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; echo last >&2"
    job, task = run_to_end(session, shell_job(script))
    assert job["state"] == "SUCCEEDED"
    uid = str(task["attempt_uid"])
    assert whole_log(session, uid) == "".join(f"line {number}\n" for number in range(20_000))
    assert whole_log(session, uid, "stderr") == "last\n"


def test_cancel_stops_the_process_and_frees_its_cell(stack: RunningStack, session: Session) -> None:
    job_id = session.submit(shell_job(UNTIL_TERM))["id"]
    task = wait_until_running(session, job_id)
    uid = str(task["attempt_uid"])
    wait_until(lambda: "begun" in whole_log(session, uid), seconds=15, what="it has begun")
    session.cancel_job(job_id, reason="enough")
    assert wait_for_end(session, job_id)["state"] == "KILLED"
    wait_until(
        lambda: session.attempt(uid)["released_at"] is not None, seconds=10, what="it is released"
    )
    assert whole_log(session, uid) == "begun\ngot TERM\n"
    wait_until(lambda: not containers_with(stack, uid), seconds=10, what="its container is gone")


def containers_with(stack: RunningStack, uid: str) -> list[str]:
    """The ids of the containers of an attempt."""
    return [
        row["Id"]
        for row in containers_of(stack.installation)
        if row["Labels"].get("cellrun.attempt") == uid
    ]


def test_the_result_is_the_head_of_the_result_file(session: Session) -> None:
    script = "yes 123456789 | head -n 2000 > /out/result"
    job, task = run_to_end(session, shell_job(script, result_file="/out/result"))
    assert job["state"] == "SUCCEEDED"
    assert task["result"] == "123456789\n" * 1024
    assert task["result_truncated"] is True  # type: ignore[typeddict-item]
    _, task = run_to_end(session, shell_job("printf 42 > /out/result", result_file="/out/result"))
    assert (task["result"], task["result_truncated"]) == ("42", False)  # type: ignore[typeddict-item]


def test_out_of_memory_and_exit_status_are_distinct_failure_reasons(session: Session) -> None:
    # /dev/zero has no line ends: `tail` keeps all of it while it waits for the last ten lines.
    spec = shell_job("tail /dev/zero", resources={**SMALL, "memory": "32Mi"})
    job, task = run_to_end(session, spec)
    assert (job["state"], task["state"]) == ("FAILED", "FAILED")
    assert task["failure_reason"] == "out of memory"
    assert task["failure_kind"] == "user"
    job, task = run_to_end(session, shell_job("exit 7"))
    assert (task["state"], task["exit_code"], task["failure_reason"]) == (
        "FAILED",
        7,
        "exit status 7",
    )


def test_a_container_killed_by_an_outsider_runs_again_without_a_failure(
    stack: RunningStack, session: Session
) -> None:
    job_id = session.submit(sleepers(1, 2))["id"]
    task = wait_until_running(session, job_id)
    subprocess.run(
        ["docker", "kill", f"cellrun-{task['attempt_uid']}"], check=True, capture_output=True
    )
    assert wait_for_end(session, job_id)["state"] == "SUCCEEDED"
    [again] = session.tasks(job_id)
    assert (again["attempt_number"], again["preemption_count"]) == (2, 1)  # type: ignore[typeddict-item]
    assert again["failure_count"] == 0  # type: ignore[typeddict-item]


def test_retry_runs_unsuccessful_tasks_and_reads_earlier_results(
    stack: RunningStack, session: Session
) -> None:
    before, _ = run_to_end(session, shell_job("exit 0"))
    # Fails in the job that comes next, and in none after that.
    join = f"cat /in/parts/* > /out/result; [ $CELLRUN_JOB_ID -gt {before['id'] + 1} ]"
    prepare = shell_job("echo part $CELLRUN_TASK_INDEX > /out/result", name="prepare", replicas=3)
    total = shell_job(join, name="total")
    total["inputs"] = [{"path": "/in/parts/", "from": {"group": "prepare", "result": True}}]
    failed, _ = run_to_end(session, {"name": "two-steps", "groups": [prepare, total]})
    assert (failed["id"], failed["state"]) == (before["id"] + 1, "FAILED")
    done = cellrun(stack, "retry", str(failed["id"]))
    assert done.returncode == 0, done.stderr
    retried = wait_for_end(session, failed["id"] + 1)
    assert (retried["state"], retried["retry_of"]) == ("SUCCEEDED", failed["id"])
    (task,) = session.tasks(retried["id"])
    assert (task["group"], task["result"]) == ("total", "part 0\npart 1\npart 2\n")

    assert cellrun(stack, "delete", str(failed["id"]), "--yes").returncode == 0
    gone = cellrun(stack, "job", str(failed["id"]))
    assert (gone.returncode, "[404]" in gone.stderr) == (2, True)
    assert session.job(retried["id"])["retry_of"] is None


def test_ctrl_c_leaves_no_process_and_no_container(stack: RunningStack, session: Session) -> None:
    """The last of this module: it stops the stack."""
    with EngineEvents(stack.installation) as events:
        job_id = session.submit(shell_job(UNTIL_TERM, replicas=6))["id"]
        wait_until(
            lambda: sum(events.starts_by_task(job_id).values()) == 6,
            seconds=60,
            what="all have started",
        )
        pids = stack.processes().values()
        assert stack.stop(signal.SIGINT) == 0
        ends = [event for event in events.of_action("die") if event["cellrun.job"] == str(job_id)]
    assert containers_of(stack.installation) == []
    assert remnants(stack.home) == []
    assert not any(is_running(pid) for pid in pids)
    # They were stopped, not killed.
    assert [event["exitCode"] for event in ends] == ["0"] * 6
