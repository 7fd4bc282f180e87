"""Programs that users start in running attempts: streams, terminals, signals, ends, leftovers."""

import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.kit import DockerKit, Kit, ProcessKit, until
from workers.attempt.events import Launch
from workers.drivers.docker.programs import ContainerProgram
from workers.exec.program import ExecCommand, ExecProgram, ExecRefused, ProgramEnd


@pytest.fixture
def launch(real_kit: Kit) -> Launch:
    """A running attempt that ends by a signal only."""
    return running(real_kit)


def running(kit: Kit, **spec: object) -> Launch:
    found = kit.launch(*kit.sleeps(300), env={"GREETING": "hello"}, **spec)
    kit.driver.start(found)
    kit.events.started(found.uid)
    return found


def execute(kit: Kit, launch: Launch, *argv: str, **options: bool) -> ExecProgram:
    return kit.driver.execute(ExecCommand(launch.uid, argv, **options))


def outcome(program: ExecProgram) -> tuple[bytes, bytes, ProgramEnd]:
    """Return both streams and the end."""
    streams = {False: b"", True: b""}
    while (output := program.read()) is not None:
        streams[output.is_error] += output.content
    return streams[False], streams[True], program.wait()


@contextmanager
def fed(program: ExecProgram, content: bytes) -> Iterator[None]:
    """Write the input, and its end, in a thread."""

    def feed() -> None:
        program.write(content)
        program.close_input()

    thread = threading.Thread(target=feed)
    thread.start()
    yield
    thread.join()


def commands() -> list[str]:
    """The command lines of the processes of this machine."""
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return found.stdout.splitlines()


def runs(mark: str) -> bool:
    return any(f"sleep {mark}" in line for line in commands() if not line.startswith("ps "))


@pytest.fixture
def mark() -> str:
    """Seconds to sleep that identify the processes of one test."""
    return f"{3000 + uuid.uuid4().int % 10**6}.{os.getpid()}"


def test_output_and_errors_come_apart_with_the_exit_code(real_kit: Kit, launch: Launch) -> None:
    program = execute(real_kit, launch, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert outcome(program) == (b"out\n", b"err\n", ProgramEnd(7))


def test_program_has_the_variables_and_the_folder_of_the_task(
    real_kit: Kit, launch: Launch
) -> None:
    program = execute(real_kit, launch, "sh", "-c", "echo $GREETING $CELLRUN_ATTEMPT_UID; pwd")
    output, _, end = outcome(program)
    greeting, folder = output.decode().splitlines()
    assert (greeting, end.code) == (f"hello {launch.uid}", 0)
    if real_kit.name == "process":
        assert folder == str(real_kit.home / "work" / launch.uid / "root")


def test_program_killed_by_a_signal_has_the_code_of_a_shell(real_kit: Kit, launch: Launch) -> None:
    program = execute(real_kit, launch, "sh", "-c", "kill -TERM $$")
    assert outcome(program)[2].code == 128 + signal.SIGTERM


def test_input_of_ten_megabytes_comes_back_whole(real_kit: Kit, launch: Launch) -> None:
    content = os.urandom(10 * 2**20)
    program = execute(real_kit, launch, "cat", stdin=True)
    with fed(program, content):
        output, _, end = outcome(program)
    assert hashlib.sha256(output).digest() == hashlib.sha256(content).digest()
    assert end == ProgramEnd(0)


def test_program_without_an_input_reads_its_end(real_kit: Kit, launch: Launch) -> None:
    assert outcome(execute(real_kit, launch, "cat")) == (b"", b"", ProgramEnd(0))


def test_input_that_the_program_does_not_read_is_dropped(real_kit: Kit, launch: Launch) -> None:
    program = execute(real_kit, launch, "sh", "-c", "exec <&-; echo closed", stdin=True)
    with fed(program, bytes(2**20)):
        assert outcome(program)[0] == b"closed\n"


def test_terminal_has_the_size_and_each_new_one(real_kit: Kit, launch: Launch) -> None:
    program = execute(real_kit, launch, "sh", tty=True, stdin=True)
    program.resize(33, 77)
    program.write(b"stty -echo; stty size\n")
    seen = read_until(program, b"33 77")
    program.resize(44, 88)
    program.write(b"stty size; test -t 0 && test -t 1 && exit 5\n")
    output, errors, end = outcome(program)
    assert b"44 88" in seen + output
    assert (errors, end) == (b"", ProgramEnd(5))


def test_control_c_on_a_terminal_interrupts_what_runs_there(
    real_kit: Kit, launch: Launch, mark: str
) -> None:
    program = execute(real_kit, launch, "sh", tty=True, stdin=True)
    program.write(f"sleep {mark}\n".encode())
    until(lambda: runs(mark))
    program.write(b"\x03")
    until(lambda: not runs(mark))
    program.write(b"exit 6\n")
    assert outcome(program)[2] == ProgramEnd(6)


def test_end_of_input_on_a_terminal_ends_a_shell(real_kit: Kit, launch: Launch) -> None:
    program = execute(real_kit, launch, "env", "PS1=ready> ", "sh", tty=True, stdin=True)
    read_until(program, b"ready> ")  # a shell that edits lines discards a Ctrl-D before its prompt
    with fed(program, b""):
        assert outcome(program)[2].code == 0


def test_signal_reaches_the_program_and_its_children(
    real_kit: Kit, launch: Launch, mark: str
) -> None:
    program = execute(real_kit, launch, "sh", "-c", f"trap 'exit 9' INT; sleep {mark} & wait")
    until(lambda: runs(mark))
    program.signal(signal.SIGINT)
    assert outcome(program)[2] == ProgramEnd(9)


def test_closed_program_leaves_no_process(real_kit: Kit, launch: Launch, mark: str) -> None:
    script = f"trap '' HUP TERM INT; sleep {mark} & sleep {mark}; sleep {mark}"
    for tty in (False, True):
        program = execute(real_kit, launch, "sh", "-c", script, tty=tty)
        until(lambda: runs(mark))
        program.close()
        assert outcome(program)[2].code != 0
        until(lambda: not runs(mark))


def test_program_that_is_closed_during_its_start_leaves_no_process(
    real_kit: Kit, launch: Launch, mark: str
) -> None:
    """The engine has not recorded a process id yet."""
    for tty in (False, True):
        program = execute(real_kit, launch, "sh", "-c", f"sleep {mark}; sleep {mark}", tty=tty)
        program.close()
        assert outcome(program)[2].code != 0
        until(lambda: not runs(mark))


class LateEngine:
    """Reports a program as starting, without a process id, in its first answers."""

    def __init__(self, api: Any, answers: int) -> None:
        self._api = api
        self._answers = answers

    def exec_inspect(self, exec_id: str) -> dict[str, Any]:
        if not self._answers:
            return dict(self._api.exec_inspect(exec_id))
        self._answers -= 1
        return {"Running": bool(self._answers % 2), "Pid": 0, "ExitCode": None}


def test_program_is_killed_once_the_engine_reports_its_process_id(
    docker_kit: DockerKit, mark: str
) -> None:
    program = execute(docker_kit, running(docker_kit), "sleep", mark)
    assert isinstance(program, ContainerProgram)
    until(lambda: runs(mark))
    program._api = LateEngine(program._api, answers=4)
    program.close()
    assert runs(mark)
    assert outcome(program)[2].code == 128 + signal.SIGKILL
    until(lambda: not runs(mark))


def test_processes_that_an_ended_program_left_are_killed(
    real_kit: Kit, launch: Launch, mark: str
) -> None:
    program = execute(real_kit, launch, "sh", "-c", f"sleep {mark} & exit 4")
    assert outcome(program)[2] == ProgramEnd(4)
    until(lambda: not runs(mark))


def test_end_of_the_attempt_ends_the_program(real_kit: Kit, launch: Launch, mark: str) -> None:
    program = execute(real_kit, launch, "sh", "-c", f"trap '' HUP TERM; sleep {mark}; sleep {mark}")
    until(lambda: runs(mark))
    real_kit.driver.stop(launch.uid, grace_seconds=0.0, force=True)
    ended = real_kit.events.ended(launch.uid)
    program.end_with_attempt()
    assert outcome(program)[2].code != 0
    until(lambda: not runs(mark))
    assert (ended.exit_code, ended.reason) == (137, "stopped")


def test_program_changes_neither_output_nor_end_of_the_attempt(real_kit: Kit) -> None:
    launch = real_kit.launch("sh", "-c", "echo own; while [ ! -e go ]; do sleep 0.05; done; exit 3")
    real_kit.driver.start(launch)
    real_kit.events.started(launch.uid)
    program = execute(real_kit, launch, "sh", "-c", "echo foreign; touch go; sleep 0.1")
    assert outcome(program)[0] == b"foreign\n"
    ended = real_kit.events.ended(launch.uid)
    assert (ended.exit_code, real_kit.log(launch.uid)) == (3, "own\n")


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (("no-such-program",), 127, "no-such-program"),
        (("/",), 126, "permission denied"),
        ((), 126, "a command has 1 to"),
        (("a\0b",), 126, "NUL"),
    ],
    ids=["missing", "folder", "empty", "nul"],
)
def test_command_that_cannot_run_has_a_code_and_a_reason(
    real_kit: Kit, launch: Launch, argv: tuple[str, ...], code: int, words: str
) -> None:
    try:
        end = outcome(execute(real_kit, launch, *argv))[2]
    except ExecRefused as refusal:
        end = ProgramEnd(refusal.code, str(refusal))
    assert end.code == code
    assert words in end.reason


def test_attempt_that_does_not_run_refuses_programs(kit: Kit) -> None:
    with pytest.raises(ExecRefused, match="the attempt does not run"):
        kit.driver.execute(ExecCommand(str(uuid.uuid4()), ("echo", "a")))
    launch = kit.launch(*kit.exits(0))
    kit.driver.start(launch)
    kit.events.ended(launch.uid)
    with pytest.raises(ExecRefused):
        kit.driver.execute(ExecCommand(launch.uid, ("echo", "a")))


@pytest.mark.parametrize("kit", ["memory"], indirect=True)
def test_scripted_program_of_the_memory_driver(kit: Kit) -> None:
    launch = kit.launch("sleep", "300")
    kit.driver.start(launch)
    kit.events.started(launch.uid)
    program = kit.driver.execute(
        ExecCommand(launch.uid, ("echo", "a", "error", "b", "cat", "exit", "3"))
    )
    with fed(program, b"typed"):
        assert outcome(program) == (b"a\ntyped", b"b\n", ProgramEnd(3))


def test_user_of_a_program_is_that_of_the_container(docker_kit: DockerKit) -> None:
    launch = running(docker_kit, user="12345:54321")
    program = execute(docker_kit, launch, "sh", "-c", "id -u; id -g")
    assert outcome(program)[0] == b"12345\n54321\n"


def test_restarted_cell_ends_its_programs_and_no_others(docker_kit: DockerKit, mark: str) -> None:
    launch = running(docker_kit)
    execute(docker_kit, launch, "sh", "-c", f"trap '' HUP; sleep {mark}; sleep {mark}")
    until(lambda: runs(mark))
    others = docker_kit.outside.exec_create(f"cellrun-{launch.uid}", ["sleep", f"{mark}7"])["Id"]
    docker_kit.outside.exec_start(others, detach=True)
    docker_kit.begin_again()
    docker_kit.driver.adopt(launch)
    docker_kit.events.started(launch.uid)
    until(lambda: not any(line.endswith(f"sleep {mark}") for line in commands()))
    assert docker_kit.outside.exec_inspect(others)["Running"]


def test_memory_limit_of_a_process_holds_for_programs_too(process_kit: ProcessKit) -> None:
    launch = running(process_kit, resources={"memory_mib": 256})
    program = execute(process_kit, launch, "sh", "-c", "ulimit -v")
    assert outcome(program)[0] == b"262144\n"


def test_killed_cell_leaves_no_program(process_kit: ProcessKit, tmp_path: Path, mark: str) -> None:
    script = textwrap.dedent(
        f"""
        import sys
        from workers.drivers.process.programs import ProcessProgram
        from workers.exec.program import ExecCommand
        order = {{"env": {{"PATH": "/usr/bin:/bin"}}, "cwd": "/", "memory_bytes": 0}}
        shell = "trap '' HUP TERM; sleep {mark} & sleep {mark}; sleep {mark}"
        program = ProcessProgram(order, ExecCommand("a", ("sh", "-c", shell)), lambda: False)
        print("runs", flush=True)
        program.read()
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as cell:
        assert cell.stdout is not None
        assert cell.stdout.readline() == b"runs\n"
        until(lambda: runs(mark))
        cell.kill()
    until(lambda: not runs(mark))


def read_until(program: ExecProgram, text: bytes) -> bytes:
    seen = b""
    while text not in seen:
        output = program.read()
        assert output is not None, seen
        seen += output.content
    return seen


def test_program_has_no_descriptors_but_its_streams(process_kit: ProcessKit) -> None:
    launch = running(process_kit)
    for tty in (False, True):
        script = "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))"
        program = execute(process_kit, launch, sys.executable, "-I", "-c", script, tty=tty)
        # The fourth is the folder that the script lists.
        assert outcome(program)[0].strip() == b"[0, 1, 2, 3]"


def test_program_that_kills_its_supervisor_ends_at_once(process_kit: ProcessKit) -> None:
    script = "echo $$; read go; kill -9 $PPID; exec sleep 300"
    program = execute(process_kit, running(process_kit), "sh", "-c", script, stdin=True)
    first = program.read()
    program.write(b"go\n")
    _, _, end = outcome(program)
    assert end.reason == "the supervisor of the program was killed"
    assert first is not None
    until(lambda: not is_alive(int(first.content)))


def is_alive(pid: int) -> bool:
    """Return whether a process runs, and is no zombie."""
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
