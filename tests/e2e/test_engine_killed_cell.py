"""A cell is killed -9 at every step of an attempt, and starts again: the task ends right, once.

Each step has a cell of its own and a job that only this cell takes; all of them live at once.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cellrun import Session
from tests.architecture.source import ROOT
from tests.e2e.engine import EngineEvents, containers_of, remove_containers
from tests.e2e.stack import Companion, RunningStack, open_folder, remnants, wait_until
from tests.e2e.work import attempts_of, session_of, shell_job, wait_for_end, whole_log
from workers.attempt.pipeline import START
from workers.secret_folder import default_folder

pytestmark = [pytest.mark.stack, pytest.mark.engine]

STEPS = tuple(step.__name__ for step in START)
MOMENTS = (
    *(f"{step}:call" for step in STEPS),
    "start_container:return",
    "collect_output:return",
    "collect_result:return",
    "keep_outputs:call",
    "keep_outputs:return",
    "remove_all:call",
    "remove_all:return",
)
SCRIPT = "echo begun; cat /in/text; sleep 0.3; cat /run/secrets/key; " + (
    "cat /in/text > /out/result; echo done"
)
TEXT, SECRET = "the text\n", "the secret\n"
ENROLL = """
import json, sys
from controlplane import clock
from controlplane.commands.cells.operate import enroll_cell
names = json.loads({names!r})
print(json.dumps({{n: enroll_cell(name=n, pool="default", now=clock.now()) for n in names}}))
"""


@dataclass(frozen=True)
class Case:
    """One moment, the cell that dies then, and the job that it runs."""

    moment: str
    folder: Path
    job_id: int
    installation: str

    @property
    def containers(self) -> list[str]:
        """What the engine still has of its cell."""
        rows = containers_of(self.installation)
        return [row["Id"] for row in rows if row["Labels"]["cellrun.cell"] == self.folder.name]

    @property
    def left(self) -> list[str]:
        """Workspaces, and secrets in memory, that were not removed."""
        secrets = default_folder(self.installation, self.folder.name, self.folder)
        return [str(path) for path in (*self.folder.glob("work/*"), *secrets.glob("*"))]


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    with open_folder() as folder:
        with RunningStack(folder / "home", cells=1) as running:
            yield running
        remove_containers(running.installation)
        assert remnants(running.home) == []


@pytest.fixture(scope="module")
def session(stack: RunningStack) -> Iterator[Session]:
    with session_of(stack, operator=True) as session:
        yield session


@pytest.fixture(scope="module")
def events(stack: RunningStack) -> Iterator[EngineEvents]:
    with EngineEvents(stack.installation) as events:
        yield events


@pytest.fixture(scope="module")
def cases(stack: RunningStack, session: Session, events: EngineEvents) -> Iterator[dict[str, Case]]:
    """Every cell has been killed at its moment, and another process of it runs."""
    keys = enroll_all(stack)
    session.put_secret("key", {"value": SECRET})
    cases = {}
    with ExitStack() as ends:
        dying = []
        for number, moment in enumerate(MOMENTS):
            folder = stack.home / f"own-{number}"
            folder.mkdir()
            (folder / "key").write_text(keys[folder.name])
            job_id = session.submit(job_for(moment))["id"]
            cases[moment] = Case(moment, folder, job_id, stack.installation)
            cell = cell_process(stack, folder, "tests.e2e.killed_cell", moment)
            dying.append(ends.enter_context(cell))
        for case, cell in zip(cases.values(), dying, strict=True):
            await_kill(cell, case.moment)
            successor = cell_process(stack, case.folder, "workers", case.moment)
            ends.enter_context(successor)
            ends.callback(successor.end, signal.SIGKILL)  # quicker than an orderly shutdown
        yield cases


def await_kill(cell: Companion, moment: str) -> None:
    """Return when the cell has been killed, and by nothing else."""
    wait_until(lambda: cell.exit_code is not None, seconds=90, what=f"killed at {moment}")
    assert cell.exit_code == -signal.SIGKILL, cell.log.read_text()[-2000:]


def job_for(moment: str) -> dict[str, Any]:
    """A job that only the cell of that moment takes."""
    return shell_job(
        SCRIPT,
        inputs=[{"content": TEXT, "path": "/in/text"}],
        secrets=[{"name": "key", "path": "/run/secrets/key"}],
        result_file="/out/result",
        outputs=[{"path": "/out/result", "name": "kept"}],
        checkpoint_path="/ckpt",
        constraints=[{"key": "dies", "op": "eq", "values": [moment]}],
    )


def cell_process(stack: RunningStack, folder: Path, module: str, moment: str) -> Companion:
    """A process of the cell that lives in that folder."""
    environment = stack.environment_of("cell-1") | {
        "CELLRUN_CELL_NAME": folder.name,
        "CELLRUN_CELL_HOME": str(folder),
        "CELLRUN_CELL_KEY_FILE": str(folder / "key"),
        "CELLRUN_CELL_LABELS": f"dies={moment}",
        "KILL_AT": moment,
    }
    return Companion([sys.executable, "-m", module], environment, folder / "log")


def enroll_all(stack: RunningStack) -> dict[str, str]:
    """The keys of all cells, by name."""
    names = json.dumps([f"own-{number}" for number in range(len(MOMENTS))])
    done = subprocess.run(
        [sys.executable, "manage.py", "shell", "-v", "0", "-c", ENROLL.format(names=names)],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "CELLRUN_HOME": str(stack.home)},
        capture_output=True,
        text=True,
        check=True,
    )
    keys: dict[str, str] = json.loads(done.stdout)
    return keys


@pytest.mark.parametrize("moment", MOMENTS)
def test_task_succeeds_with_one_start_though_its_cell_is_killed(
    session: Session, events: EngineEvents, cases: dict[str, Case], moment: str
) -> None:
    case = cases[moment]
    job = wait_for_end(session, case.job_id, seconds=90)
    assert job["state"] == "SUCCEEDED", job["failure_reason"]
    (task,) = session.tasks(case.job_id)
    assert task["result"] == TEXT
    (attempts,) = attempts_of(session, case.job_id).values()
    started = [one for one in attempts if one["uid"] in events.attempts_started(case.job_id)]
    # What began goes on, and what surely did not begins anew; only what left no trace is
    # uncertain, and it is tried again, which costs its own budgets nothing.
    assert [one["state"] for one in attempts[:-1]] == ["WORKER_FAILED"] * (len(attempts) - 1)
    assert len(started) == sum(events.starts_by_task(case.job_id).values()) == 1
    assert started == attempts[-1:]
    assert len(attempts) == (2 if moment == "make_workspace:call" else 1)
    assert task["failure_count"] == task["system_failure_count"] == 0  # type: ignore[typeddict-item]
    assert b"".join(session.read_artifact(attempts[-1]["uid"], "kept")) == TEXT.encode()
    assert whole_log(session, attempts[-1]["uid"]) == f"begun\n{TEXT}{SECRET}done\n"
    wait_until(lambda: not case.left, seconds=60, what="no workspace and no secret is left")
    wait_until(lambda: not case.containers, seconds=60, what="no container is left")
