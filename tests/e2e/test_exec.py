"""`cellrun exec` through everything, from command to engine, also while parts are killed."""

import fcntl
import hashlib
import os
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from cellrun import Session
from cellrun.documents import ExecDocument, Task
from cellrun.settings import ClientSettings
from tests.e2e.stack import RunningStack, open_folder, remnants, wait_until
from tests.e2e.work import session_of, shell_job, wait_for_end, whole_log
from tests.harness.terminal import read_until, terminal

pytestmark = pytest.mark.stack

RUN = [sys.executable, "-c", "from cellrun.cli import app; app()", "exec"]
SECONDS = 120
LOST = 255
ENGINES = [pytest.param("docker", marks=pytest.mark.engine), "process"]


Submit = Callable[[str], int]


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def stack(engine: str) -> Iterator[RunningStack]:
    with open_folder() as folder:
        with RunningStack(folder / "home", cells=1, engine=engine) as running:
            yield running
        assert remnants(running.home) == []


@pytest.fixture(scope="module")
def session(stack: RunningStack) -> Iterator[Session]:
    with session_of(stack) as session:
        yield session


@pytest.fixture(scope="module")
def submit(engine: str, session: Session) -> Submit:
    """Submit a job that runs a script on the stack's engine, and return its id."""

    def submit(script: str) -> int:
        job = shell_job(script)
        if engine == "process":
            del job["image"]
            job["task_type"] = "process"
        return session.submit(job)["id"]

    return submit


@pytest.fixture
def task(session: Session, submit: Submit) -> Iterator[Task]:
    """A task that runs until it is cancelled."""
    job_id = submit("echo own output; trap 'exit 0' TERM; while :; do sleep 0.2; done")
    yield running_task(session, job_id)
    session.cancel_job(job_id, reason="the test is over")
    wait_for_end(session, job_id)


@pytest.fixture
def address(task: Task) -> str:
    return f"{task['job']}/main.0"


def running_task(session: Session, job_id: int) -> Task:
    """Return the task of a job once it runs."""

    def is_running() -> bool:
        return next(session.tasks(job_id))["state"] == "RUNNING"

    wait_until(is_running, seconds=60, what=f"job {job_id} runs")
    return next(session.tasks(job_id))


def environment(stack: RunningStack, **changes: str) -> dict[str, str]:
    names = ("CELLRUN_URL", "CELLRUN_TOKEN")
    own = {name: stack.environment[name] for name in names}
    return {"PATH": os.environ["PATH"], "HOME": str(stack.home), **own, **changes}


def execute(
    stack: RunningStack, *words: str, content: bytes = b"", **changes: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*RUN, *words],
        env=environment(stack, **changes),
        input=content,
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )


@contextmanager
def executing(stack: RunningStack, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command with pipes that is killed at the end."""
    pipe = subprocess.PIPE
    env = environment(stack)
    with subprocess.Popen([*RUN, *words], env=env, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


def exchange(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    """Send a line to a program and return its next line."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line)
    process.stdin.flush()
    return process.stdout.readline()


def sessions_of(session: Session, task: Task) -> list[ExecDocument]:
    """Return the sessions of the newest attempt, newest first."""
    assert task["attempt_uid"] is not None
    return session.exec_sessions(task["attempt_uid"])


def test_output_errors_and_exit_code(stack: RunningStack, address: str) -> None:
    done = execute(stack, address, "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.stdout, done.stderr, done.returncode) == (b"out\n", b"err\n", 7)


def test_program_that_does_not_exist(stack: RunningStack, address: str) -> None:
    done = execute(stack, address, "--", "no-such-program", "-x")
    assert done.returncode == 127
    assert done.stderr.startswith(b"cellrun: ")
    assert b"no-such-program" in done.stderr


def test_ten_megabytes_through_cat(stack: RunningStack, address: str) -> None:
    content = os.urandom(10 * 2**20)
    done = execute(stack, "-i", address, "cat", content=content)
    assert (done.stderr, done.returncode) == (b"", 0)
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(content).digest()


def test_terminal_with_a_new_size(
    stack: RunningStack, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(stack).items():
        monkeypatch.setenv(name, value)
    with terminal("exec", "-it", address, "--", "sh") as (process, end):
        os.write(end, b"echo re''ady\n")
        read_until(end, b"ready")
        before = termios.tcgetattr(end)
        resize(end, 33, 77, process)
        os.write(end, b"until stty size | grep '33 77'; do :; done\n")
        read_until(end, b"33 77\r\n")
        os.write(end, b"sh -c 'echo sle\\ep; exec sleep 1000'\n")
        read_until(end, b"sleep\r\n")
        os.write(end, b"\x03")
        os.write(end, b"echo inter''rupted; exit 5\n")
        read_until(end, b"interrupted")
        assert process.wait(SECONDS) == 5
        assert before[3] & termios.ECHO == 0
        assert termios.tcgetattr(end)[3] & termios.ECHO


def resize(end: int, rows: int, columns: int, process: subprocess.Popen[bytes]) -> None:
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process.send_signal(signal.SIGWINCH)


def test_interrupt_without_a_terminal_reaches_the_program(
    stack: RunningStack, address: str
) -> None:
    script = "trap 'echo interrupted; exit 9' INT; echo ready; while :; do sleep 0.1; done"
    with executing(stack, address, "--", "sh", "-c", script) as process:
        assert exchange(process, b"") == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert exchange(process, b"") == b"interrupted\n"
        assert process.wait(SECONDS) == 9


def test_session_is_listed_and_leaves_the_log_alone(
    stack: RunningStack, session: Session, task: Task, address: str
) -> None:
    assert execute(stack, address, "--", "sh", "-c", "echo foreign; exit 3").returncode == 3
    listed = sessions_of(session, task)
    assert [(item["command"], item["state"], item["exit_code"]) for item in listed] == [
        (["sh", "-c", "echo foreign; exit 3"], "ENDED", 3)
    ]
    assert task["attempt_uid"] is not None
    assert "foreign" not in whole_log(session, task["attempt_uid"])
    assert session.task(task["id"])["state"] == "RUNNING"


def test_session_continues_while_web_is_killed(stack: RunningStack, address: str) -> None:
    with executing(stack, "-i", address, "--", "cat") as process:
        assert exchange(process, b"before\n") == b"before\n"
        stack.kill_and_await("web")
        assert exchange(process, b"after\n") == b"after\n"
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(SECONDS) == 0


def test_cancel_of_the_job_ends_the_program(
    stack: RunningStack, session: Session, submit: Submit
) -> None:
    job_id = submit("while :; do sleep 0.2; done")
    task = running_task(session, job_id)
    with executing(
        stack, f"{job_id}/main.0", "--", "sh", "-c", "echo ready; sleep 1000"
    ) as process:
        assert exchange(process, b"") == b"ready\n"
        session.cancel_job(job_id, reason="in the middle")
        assert process.wait(SECONDS) != 0
    assert wait_for_end(session, job_id)["state"] == "KILLED"
    [listed] = sessions_of(session, task)
    assert listed["state"] == "ENDED"


def test_task_that_has_ended_is_refused(
    stack: RunningStack, session: Session, submit: Submit
) -> None:
    job_id = submit("true")
    wait_for_end(session, job_id)
    done = execute(stack, f"{job_id}/main.0", "--", "true")
    assert done.returncode == LOST
    assert b"SUCCEEDED" in done.stderr
    assert b"[409]" in done.stderr


def test_two_sessions_of_two_users(stack: RunningStack, session: Session, address: str) -> None:
    operator = stack.environment["CELLRUN_OPERATOR_TOKEN"]
    with executing(stack, "-i", address, "--", "cat") as process:
        assert exchange(process, b"mine\n") == b"mine\n"
        done = execute(stack, address, "--", "echo", "other", CELLRUN_TOKEN=operator)
        assert (done.stdout, done.returncode) == (b"other\n", 0)
        assert exchange(process, b"still mine\n") == b"still mine\n"


def test_viewer_is_refused(stack: RunningStack, session: Session, address: str) -> None:
    url = stack.environment["CELLRUN_URL"]
    with Session(ClientSettings(url, stack.environment["CELLRUN_OPERATOR_TOKEN"])) as operator:
        operator.put_user("mary")
        operator.put_member("user", "mary", role="viewer", project="default/default")
        token = operator.create_token("exec", user="mary", expires_in_days=1)["token"]
    done = execute(stack, address, "--", "true", CELLRUN_TOKEN=token)
    assert done.returncode == LOST
    assert b"[403]" in done.stderr


def test_killed_cell_ends_the_session_and_leaves_the_task(
    stack: RunningStack, session: Session, task: Task, address: str
) -> None:
    with executing(stack, "-i", address, "--", "sh", "-c", "echo ready; cat") as process:
        assert exchange(process, b"") == b"ready\n"
        stack.kill_and_await("cell-1")
        assert process.wait(SECONDS) == LOST
        assert process.stderr is not None
        assert b"the session is over" in process.stderr.read()
    [listed] = sessions_of(session, task)
    assert (listed["state"], listed["exit_code"]) == ("ENDED", None)
    assert session.task(task["id"])["state"] == "RUNNING"
    assert execute(stack, address, "--", "echo", "again").stdout == b"again\n"
