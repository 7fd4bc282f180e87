"""Files go from task to task through the whole system: outputs, checkpoints, and their end."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cellrun import Session
from cellrun.downloads.files import Download
from tests.e2e.stack import RunningStack, wait_until
from tests.e2e.work import (
    IMAGE,
    SMALL,
    attempts_of,
    session_of,
    shell_job,
    wait_for_end,
    whole_log,
)
from tests.harness.live_files import files_below

pytestmark = [pytest.mark.stack, pytest.mark.engine, pytest.mark.xdist_group("one cell")]

# Counts in its checkpoint; as the second attempt it goes on for a moment and succeeds.
COUNT = (
    "cd /ckpt; n=$(cat n || echo 0); echo from $n; "
    "while [ $CELLRUN_ATTEMPT_NUMBER = 1 ]; do n=$((n+1)); echo $n > n.new; mv n.new n; "
    "sleep 0.05; done"
)


def content(session: Session, uid: str, name: str) -> bytes:
    return b"".join(session.read_artifact(uid, name))


def files_of(stack: RunningStack, uid: str) -> list[Path]:
    return [path for path in files_below(stack.home / "artifacts") if uid in str(path)]


def test_preempted_task_resumes_from_its_checkpoint(stack: RunningStack, session: Session) -> None:
    with session_of(stack, operator=True) as operator:
        cores = operator.cell("cell-1")["capacity"]["cpu"]
    room = {"cpu": round(cores * 600) / 1000, "memory": "32Mi"}
    batch = session.submit(
        shell_job(COUNT, name="batch", band="batch", resources=room, checkpoint_path="/ckpt")
    )["id"]
    [task] = session.tasks(batch)
    wait_until(
        lambda: any(
            "from 0" in whole_log(session, each["uid"]) for each in session.attempts(task["id"])
        ),
        seconds=60,
        what="it counts",
    )
    urgent = shell_job("echo urgent", name="urgent", band="production", resources=room)
    assert wait_for_end(session, session.submit(urgent)["id"])["state"] == "SUCCEEDED"
    assert wait_for_end(session, batch)["state"] == "SUCCEEDED"
    first, second = session.attempts(task["id"])
    assert (first["state"], second["state"]) == ("PREEMPTED", "SUCCEEDED")
    assert [item["name"] for item in session.artifacts(first["uid"])] == ["_checkpoint.tar"]
    came_to = int(whole_log(session, second["uid"]).split()[-1])
    assert came_to > 0
    assert session.artifacts(second["uid"]) == []


def test_outputs_reach_the_next_group_and_users_and_are_deleted_with_the_job(
    stack: RunningStack, session: Session
) -> None:
    make = "head -c 3000000 /dev/urandom > /out/model; mkdir /out/notes; echo $CELLRUN_TASK_INDEX"
    job = {
        "name": "train",
        "groups": [
            {
                "name": "fit",
                "replicas": 2,
                "image": IMAGE,
                "resources": SMALL,
                "command": ["sh", "-c", f"{make} > '/out/notes/a b'"],
                "outputs": [{"path": "/out/model"}, {"path": "/out/notes", "name": "words"}],
            },
            {
                "name": "report",
                "image": IMAGE,
                "resources": SMALL,
                "command": ["sh", "-c", "sha256sum /in/*/model; cat '/notes/1/words/a b'"],
                "inputs": [
                    {"path": "/in", "from": {"group": "fit", "output": "model"}},
                    {"path": "/notes", "from": {"group": "fit", "output": "words"}},
                ],
            },
        ],
    }
    job_id = session.submit(job)["id"]
    assert wait_for_end(session, job_id)["state"] == "SUCCEEDED"
    first, second, report = [attempts[-1] for attempts in attempts_of(session, job_id).values()]
    assert [item["name"] for item in session.artifacts(second["uid"])] == ["model", "words/a b"]
    assert content(session, second["uid"], "words/a b") == b"1\n"
    digests = [
        hashlib.sha256(content(session, each["uid"], "model")).hexdigest()
        for each in (first, second)
    ]
    *sums, note = whole_log(session, report["uid"]).splitlines()
    assert sums == [f"{digest}  /in/{n}/model" for n, digest in enumerate(digests)]
    assert note == "1"
    assert len(files_of(stack, first["uid"])) >= 2
    session.delete_job(job_id)
    # Deletion waits for one lease after a start, so that reports come first.
    wait_until(
        lambda: not any(files_of(stack, each["uid"]) for each in (first, second)),
        seconds=60,
        what="the files have gone with the job",
    )


def test_outputs_of_a_failed_attempt_are_read_by_the_submitter(session: Session) -> None:
    outputs = [{"path": "/out/model"}, {"path": "/out/trace", "keep_on_failure": True}]
    job = shell_job("echo 7 > /out/trace; exit 3", outputs=outputs, resources=SMALL)
    job_id = session.submit(job)["id"]
    assert wait_for_end(session, job_id)["state"] == "FAILED"
    ((attempt,),) = attempts_of(session, job_id).values()
    assert [item["name"] for item in session.artifacts(attempt["uid"])] == ["trace"]
    assert content(session, attempt["uid"], "trace") == b"7\n"


def test_command_downloads_and_continues_the_artifacts_of_a_job(
    session: Session, tmp_path: Path
) -> None:
    make = "head -c 3000000 /dev/urandom > /out/model; mkdir /out/notes"
    job = shell_job(
        f"{make}; echo $CELLRUN_TASK_INDEX > '/out/notes/a b'",
        replicas=2,
        outputs=[{"path": "/out/model"}, {"path": "/out/notes"}],
        resources=SMALL,
    )
    job_id = session.submit(job)["id"]
    assert wait_for_end(session, job_id)["state"] == "SUCCEEDED"
    first, second = session.job_artifacts(job_id)
    model = next(item for item in second["artifacts"] if item["name"] == "model")
    with session.open_artifact(model) as (_, pieces):
        whole = b"".join(pieces)
    assert hashlib.sha256(whole).hexdigest() == model["sha256"]
    target = Download(model, tmp_path / "main" / "1", ("model",))
    target.partial.parent.mkdir(parents=True)
    target.partial.write_bytes(whole[:2_000_001])
    with session.open_artifact(model, 2_000_001) as (start, pieces):
        assert (start, b"".join(pieces)) == (2_000_001, whole[2_000_001:])
    cellrun(session, "artifacts", str(job_id), "--get", str(tmp_path))
    assert {path.relative_to(tmp_path).as_posix() for path in files_below(tmp_path)} == {
        f"main/{index}/{name}" for index in (0, 1) for name in ("model", "notes/a b")
    }
    assert target.target.read_bytes() == whole
    assert (tmp_path / "main" / "0" / "notes" / "a b").read_bytes() == b"0\n"
    assert cellrun(session, "cp", f"{job_id}:main.1:notes/a b", "-") == b"1\n"
    assert first["artifacts"] == session.task_artifacts(first["task"])


def cellrun(session: Session, *words: str) -> bytes:
    """Run the command with the session's server and token, and return what it prints."""
    token = str(session._http.headers["Authorization"]).removeprefix("Bearer ")
    environment = {**os.environ, "CELLRUN_URL": session.url, "CELLRUN_TOKEN": token}
    command = [sys.executable, "-c", "from cellrun.cli import app; app()", *words]
    return subprocess.run(command, env=environment, capture_output=True, check=True).stdout


def test_matches_and_streams_reach_users_and_the_next_group(session: Session) -> None:
    job = {
        "name": "sort",
        "groups": [
            {
                "name": "sort",
                "image": IMAGE,
                "resources": SMALL,
                "inputs": [{"path": "/in/words", "content": "b\na\n"}],
                "stdin": "/in/words",
                "command": ["sort"],
                "stdout": "/out/deep/sorted.txt",
                "stderr": "/out/result",
                "outputs": [{"path": "/out/**/*.txt", "name": "texts"}],
            },
            {
                "name": "read",
                "image": IMAGE,
                "resources": SMALL,
                "inputs": [{"path": "/in/", "from": {"group": "sort", "output": "texts"}}],
                "stdin": "/in/0/texts/deep/sorted.txt",
                "command": ["cat"],
            },
        ],
    }
    job_id = session.submit(job)["id"]
    assert wait_for_end(session, job_id)["state"] == "SUCCEEDED"
    sort, read = session.tasks(job_id)
    assert sort["result"] == ""
    uid = sort["attempt_uid"]
    assert [item["name"] for item in session.artifacts(uid)] == ["texts/deep/sorted.txt"]
    assert content(session, uid, "texts/deep/sorted.txt") == b"a\nb\n"
    assert whole_log(session, uid) == whole_log(session, read["attempt_uid"]) == "a\nb\n"


def test_output_above_the_limit_of_the_project_fails_its_task(
    session: Session, operator: Session
) -> None:
    used = session.project("default/default")["stored_bytes"]
    operator.put_quota("project", "default/default", {"stored_bytes": used + 2**20})
    try:
        job = shell_job(
            "echo begun; head -c 1100000 /dev/zero > /out/model",
            outputs=[{"path": "/out/model"}],
            retries={"failure": 1},
        )
        ended = wait_for_end(session, session.submit(job)["id"])
        assert ended["state"] == "FAILED"
        [attempts] = attempts_of(session, ended["id"]).values()
        assert [attempt["failure_kind"] for attempt in attempts] == ["user", "user"]
        for attempt in attempts:
            assert "project default/default stores" in attempt["failure_reason"]
            assert "its limit stored_bytes is" in attempt["failure_reason"]
            assert whole_log(session, attempt["uid"]) == "begun\n"
        assert used < session.project("default/default")["stored_bytes"] < used + 2**20
    finally:
        operator.put_quota("project", "default/default", {"stored_bytes": None})
    session.delete_job(ended["id"])
    wait_until(
        lambda: session.project("default/default")["stored_bytes"] <= used,
        seconds=60,
        what="its space is free",
    )
