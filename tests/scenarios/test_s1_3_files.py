"""S1.3: what a task reads, where each attempt writes, checkpoints, secrets, limited tokens.

Source: Flyte, "Task Execution Context": the InputReader "accesses the task's inputs", the
OutputWriter "generates sharded, attempt-specific paths to avoid collisions", with "a 2-character
base-36 prefix"; the SecretManager "provides access to secrets required by the task"; the
ResourceManager "manages external resources".
"""

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest

from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.tenancy.secrets import put_secret
from controlplane.models import Job, Project
from tests.harness.live_files import content_of, files_below
from tests.scenarios.cells import LiveStage, RealCell, script_of

FAIL_ONCE = "[ $CELLRUN_ATTEMPT_NUMBER = 2 ]"


@pytest.fixture
def cell_settings(live: LiveStage) -> dict[str, Any]:
    """Cells may write below a folder of this machine."""
    return {"file_roots": (base_of(live),)}


def base_of(live: LiveStage) -> Path:
    return live.home / "base"


def left(live: LiveStage) -> list[str]:
    """The files below the base, by their paths from there."""
    base = base_of(live)
    return sorted(str(path.relative_to(base)) for path in base.rglob("*") if path.is_file())


def ran(live: LiveStage, cell: RealCell, script: str, **body: object) -> Job:
    """A job that has succeeded. In the script, `@` stands before the paths of the job."""
    job = live.run(cell, script.replace("@", cell.root), **body)
    live.until_settled(job)
    assert live.state(job) == "SUCCEEDED", live.describe()
    return job


def printed(live: LiveStage, job: Job) -> str:
    return str(live.until(lambda: live.log(live.last(job))))


def test_task_reads_inline_inputs_of_its_job(live: LiveStage, cell: RealCell) -> None:
    inputs = [{"path": "/in/a", "content": "one\n"}, {"path": "/deep/in/b", "content": "two\n"}]
    assert printed(live, ran(live, cell, "cat @/in/a @/deep/in/b", inputs=inputs)) == "one\ntwo\n"


def test_task_reads_outputs_of_another_group(live: LiveStage, cell: RealCell) -> None:
    make = f"echo model of $CELLRUN_TASK_INDEX > {cell.root}/out/model"
    read = f"cat {cell.root}/in/*/model"
    groups = [
        live.group("fit", replicas=2, outputs=[{"path": "/out/model"}], **script_of(cell, make)),
        live.group(
            "report",
            inputs=[{"path": "/in", "from": {"group": "fit", "output": "model"}}],
            **script_of(cell, read),
        ),
    ]
    job = live.submit(groups=groups)
    live.until_settled(job)
    assert live.states(job) == ["SUCCEEDED"] * 3, live.describe()
    report = live.newest(job)[-1]
    assert live.until(lambda: live.log(report)) == "model of 0\nmodel of 1\n"


def test_each_attempt_writes_to_its_own_sharded_path(live: LiveStage, cell: RealCell) -> None:
    job = ran(
        live,
        cell,
        f"echo $CELLRUN_ATTEMPT_NUMBER | tee @/out/model > @/state/at; {FAIL_ONCE}",
        replicas=2,
        retries={"failure": 1},
        max_task_failures=2,
        outputs=[{"path": "/out/model"}],
        checkpoint_path="/state",
        output_base=f"file://{base_of(live)}/",
    )
    attempts = live.attempts(job)
    assert [attempt.number for attempt in attempts] == [1, 2, 1, 2]
    expected = {
        f"default/default/{job.pk}/{attempt.task_id}/{attempt.uid}/"
        + ("_checkpoint.tar" if attempt.number == 1 else "model")
        for attempt in attempts
    }
    found = [path.partition("/") for path in left(live)]
    assert {path for _, _, path in found} == expected
    shards = {shard for shard, _, _ in found}
    assert all(re.fullmatch("[0-9a-z]{2}", shard) for shard in shards)
    assert len(shards) > 1


def test_failed_attempt_leaves_only_its_checkpoint_for_the_next(
    live: LiveStage, cell: RealCell
) -> None:
    script = f"cd @/state; cat at; echo came to 7 > at; echo bad > @/out/model; {FAIL_ONCE}"
    job = ran(
        live,
        cell,
        script + " && echo good > @/out/model",
        retries={"failure": 1},
        outputs=[{"path": "/out/model"}],
        checkpoint_path="/state",
        output_base=f"file://{base_of(live)}/",
    )
    assert printed(live, job) == "came to 7\n"
    [model] = [path for path in left(live) if path.endswith("/model")]
    assert (base_of(live) / model).read_text() == "good\n"


def test_task_gets_its_secrets_and_nothing_else_contains_them(
    live: LiveStage, cell: RealCell
) -> None:
    value = b"very-hushed-words"
    put_secret(
        project_id=Project.objects.get().pk, name="key", value=value, writer=None, now=live.now()
    )
    secrets = [{"name": "key", "path": "/run/secrets/key"}]
    job = ran(live, cell, "sha256sum < @/run/secrets/key", secrets=secrets)
    assert printed(live, job).split()[0] == hashlib.sha256(value).hexdigest()
    visible = str((live.document(job), live.history(job), cell.orders))
    assert str(live.last(job).uid) in visible
    assert not [sign for sign in (value, base64.b64encode(value)) if sign.decode() in visible]
    kept = [path for path in files_below(live.home) if not path.is_symlink()]
    assert kept
    assert not [path for path in kept if value in content_of(path)]


def test_tokens_are_held_until_their_attempt_is_released(live: LiveStage, cell: RealCell) -> None:
    live.policy(tokens={"licence": 1})
    resources = {"cpu": 0.1, "memory": "64Mi", "licence": 1}
    tidy = f"tidy() {{ until [ -e {cell.signal_file('tidied')} ]; do sleep 0.02; done; exit; }};"
    script = f"{tidy} trap tidy TERM; echo ready; sleep 300 & wait"
    holder = live.run(cell, script, resources=resources, stop_grace_seconds=300)
    attempt = live.until_runs(holder)
    live.until(lambda: "ready" in cell.written(attempt))
    other = live.run(cell, "true", resources=resources)
    live.place()
    text = "tokens licence: 1 used + 1 requested > 1 of the pool"
    assert text in live.why(other)["text"]
    cancel_job(job_id=holder.pk, reason="", force=False, actor="me", now=live.now())
    live.place()
    assert (live.states(holder), live.states(other)) == (["KILLED"], ["PENDING"])
    cell.touch(attempt, "tidied")
    live.until_state(other, "SUCCEEDED")
