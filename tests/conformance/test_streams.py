"""Standard input from an input, and output as files of the task, on every engine."""

import hashlib
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.contract.messages.orders import Input
from controlplane.contract.messages.task_options import Output
from controlplane.contract.states import FailureKind
from tests.conformance.keeper import Keeper
from tests.conformance.kit import SECONDS, DockerKit, Kit, ProcessKit, until
from tests.conformance.test_artifacts import ran, script
from tests.conformance.test_files import ROOT
from tests.harness.web import Web
from workers.attempt.capture import cut_note
from workers.attempt.events import EndedEvent, Permit
from workers.attempt.outcome import EXIT, INPUTS, OUTPUTS, STOPPED

LARGE = bytes(range(256)) * 80_000  # many times what a pipe holds


@pytest.fixture
def keeper(web: Web) -> Keeper:
    return Keeper(web)


@pytest.fixture
def kit(real_kit: Kit, keeper: Keeper) -> Kit:
    """A kit whose cell uses the keeper."""
    keeper.serve(real_kit)
    return real_kit


def fed(kit: Kit, web: Web, content: bytes, *command: str, **spec: Any) -> EndedEvent:
    """The end of a command that gets `content` as its standard input."""
    web.files["/text"] = content
    inputs = (Input("/in/text", f"{web.url}/text"),)
    launch = kit.launch(*command, inputs=inputs, stdin="/in/text", **spec)
    kit.driver.start(launch)
    return kit.events.ended(launch.uid)


# ----------------------------------------------------------------------------- input


@pytest.mark.parametrize("content", [b"", b"one\n", LARGE], ids=["empty", "small", "large"])
def test_input_is_the_standard_input_of_a_program_without_a_shell(
    kit: Kit, web: Web, content: bytes
) -> None:
    ended = fed(kit, web, content, "sha256sum")
    assert ended.exit_code == 0, ended
    assert hashlib.sha256(content).hexdigest() in kit.log(ended.uid)


@pytest.mark.parametrize("content", [b"", b"one\n", LARGE], ids=["empty", "small", "large"])
def test_input_of_a_program_that_is_started_late(kit: Kit, web: Web, content: bytes) -> None:
    web.files["/text"] = content
    inputs = (Input("/in/text", f"{web.url}/text"),)
    launch = kit.launch("sha256sum", inputs=inputs, stdin="/in/text")
    answers = iter([Permit.NOT_YET] * 20)

    def permit() -> Permit:
        """Hold up the start, once the container exists."""
        is_created = any(found.uid == launch.uid for found in kit.driver.find())
        return next(answers, Permit.YES) if is_created else Permit.YES

    kit.driver.start(replace(launch, permit=permit))
    ended = kit.events.ended(launch.uid)
    assert ended.exit_code == 0, ended
    assert hashlib.sha256(content).hexdigest() in kit.log(launch.uid)


def test_program_may_ignore_its_standard_input(kit: Kit, web: Web) -> None:
    for text, code in (("head -c 5; exit 3", 3), ("exec 0<&-; sleep 1; exit 4", 4), ("exit 5", 5)):
        ended = fed(kit, web, LARGE, "sh", "-c", text)
        assert (ended.exit_code, ended.reason) == (code, EXIT), ended


def test_program_that_reads_late_has_all_of_its_input(kit: Kit, web: Web) -> None:
    ended = fed(kit, web, LARGE, "sh", "-c", "sleep 2; wc -c")
    assert kit.log(ended.uid).strip() == str(len(LARGE))


def test_program_without_stdin_has_an_empty_one(kit: Kit) -> None:
    ended = ran(kit, "wc -c")
    assert kit.log(ended.uid).strip() == "0"


def test_memory_limit_holds_with_a_standard_input(kit: Kit, web: Web) -> None:
    for mebibytes in (16, 256):
        ended = fed(kit, web, b"x\n", "cat", resources={"memory_mib": mebibytes})
        assert (ended.exit_code, kit.log(ended.uid)) == (0, "x\n"), ended


def test_file_of_a_bundle_is_a_standard_input(kit: Kit, web: Web) -> None:
    web.files["/bundle"] = b'{"name": "0", "content": "zero\\n"}'
    inputs = (Input("/in/", f"{web.url}/bundle", bundle=True),)
    launch = kit.launch("cat", inputs=inputs, stdin="/in/0")
    kit.driver.start(launch)
    assert kit.events.ended(launch.uid).exit_code == 0
    assert kit.log(launch.uid) == "zero\n"
    launch = kit.launch("cat", inputs=inputs, stdin="/in/1")
    kit.driver.start(launch)
    ended = kit.events.ended(launch.uid)
    assert (ended.failure_kind, ended.reason) == (FailureKind.USER, INPUTS)
    assert ended.message is not None
    assert "/in/1" in ended.message


def test_stopped_task_does_not_wait_for_its_input(kit: Kit, web: Web) -> None:
    web.files["/text"] = LARGE
    inputs = (Input("/in/text", f"{web.url}/text"),)
    text = "echo ready; exec sleep 1000"
    launch = kit.launch("sh", "-c", text, inputs=inputs, stdin="/in/text")
    kit.driver.start(launch)
    kit.wait_until_ready(launch.uid)
    kit.driver.stop(launch.uid, grace_seconds=0.0, force=True)
    ended = kit.events.ended(launch.uid)
    assert (ended.failure_kind, ended.reason) == (None, STOPPED), ended


def test_input_that_was_sent_survives_a_restart_of_the_cell(kit: Kit, web: Web) -> None:
    web.files["/text"] = b"one\ntwo\n"
    inputs = (Input("/in/text", f"{web.url}/text"),)
    text = "read line; echo ready; sleep 2; cat"
    launch = kit.launch("sh", "-c", text, inputs=inputs, stdin="/in/text")
    kit.driver.start(launch)
    kit.wait_until_ready(launch.uid)
    kit.begin_again()
    kit.driver.adopt(launch)
    ended = kit.events.ended(launch.uid)
    assert (ended.exit_code, ended.reason) == (0, None), ended
    assert kit.log(launch.uid) == "ready\ntwo\n"


def test_large_input_of_a_process_survives_a_restart_of_the_cell(
    process_kit: ProcessKit, web: Web
) -> None:
    web.files["/text"] = LARGE
    inputs = (Input("/in/text", f"{web.url}/text"),)
    text = "echo ready; sleep 1; wc -c"
    launch = process_kit.launch("sh", "-c", text, inputs=inputs, stdin="/in/text")
    process_kit.driver.start(launch)
    process_kit.wait_until_ready(launch.uid)
    process_kit.begin_again()
    process_kit.driver.adopt(launch)
    assert process_kit.events.ended(launch.uid).exit_code == 0
    assert process_kit.log(launch.uid) == f"ready\n{len(LARGE)}\n"


@pytest.mark.engine
def test_container_whose_input_was_cut_off_is_a_system_failure(
    docker_kit: DockerKit, web: Web
) -> None:
    """Its program sees the end of the file, and may take it for the real one."""
    web.files["/text"] = LARGE
    inputs = (Input("/in/text", f"{web.url}/text"),)
    text = "echo ready; sleep 2; wc -c; sleep 2"
    launch = docker_kit.launch("sh", "-c", text, inputs=inputs, stdin="/in/text")
    docker_kit.driver.start(launch)
    docker_kit.wait_until_ready(launch.uid)
    feeds = [one for one in threading.enumerate() if one.name.startswith("stdin-")]
    docker_kit.begin_again()
    for feed in feeds:
        feed.join(SECONDS)
    docker_kit.driver.adopt(launch)
    ended = docker_kit.events.ended(launch.uid)
    assert (ended.failure_kind, ended.reason) == (FailureKind.SYSTEM, INPUTS), ended
    assert ended.message is not None
    assert "stdin" in ended.message


# ----------------------------------------------------------------------------- output


def test_streams_are_files_of_the_task_and_logs(kit: Kit, keeper: Keeper) -> None:
    text = r"printf 'out \000\377'; echo error >&2; echo y > ${CELLRUN_ROOT:-}/out/other"
    ended = ran(
        kit,
        text,
        Output("/logs/", "logs"),
        Output("/out/*", "all"),
        stdout="/out/deep/printed",
        stderr="/logs/errors",
    )
    assert ended.exit_code == 0, ended
    assert keeper.kept[ended.uid] == {
        "logs/errors": b"error\n",
        "all/other": b"y\n",
        "all/deep/printed": b"out \x00\xff",
    }
    assert kit.log(ended.uid, "stderr") == "error\n"


def test_standard_output_can_be_the_result(kit: Kit) -> None:
    ended = ran(kit, "echo 42", stdout="/out/result")
    assert (ended.exit_code, ended.result) == (0, "42\n"), ended


def test_stream_without_output_is_an_empty_file(kit: Kit, keeper: Keeper) -> None:
    ended = ran(kit, "true", Output("/out/log", "log"), stdout="/out/log", user="1000:1000")
    assert ended.exit_code == 0, ended
    assert keeper.kept[ended.uid] == {"log": b""}


def test_streams_of_a_failed_task_are_stored_if_the_job_wants_them(
    kit: Kit, keeper: Keeper
) -> None:
    log = Output("/out/log", "log", keep_on_failure=True)
    ended = ran(kit, "echo 1; echo 2 >&2; exit 3", log, stdout="/out/x", stderr="/out/log")
    assert (ended.exit_code, ended.reason) == (3, EXIT)
    assert keeper.kept[ended.uid] == {"log": b"2\n"}


def test_stream_over_the_limit_of_kept_output_fails_the_task(kit: Kit, keeper: Keeper) -> None:
    keeper.serve(kit, max_log_bytes=1000)
    log = Output("/out/log", "log", keep_on_failure=True)
    ended = ran(kit, "head -c 1001 /dev/zero | tr '\\0' x", log, stdout="/out/log")
    assert (ended.exit_code, ended.failure_kind, ended.reason) == (0, FailureKind.USER, OUTPUTS)
    assert ended.message is not None
    assert "1000 bytes" in ended.message
    assert keeper.kept[ended.uid] == {"log": b"x" * 1000 + cut_note(1000)}
    ended = ran(kit, "head -c 1000 /dev/zero | tr '\\0' x", log, stdout="/out/log")
    assert keeper.kept[ended.uid] == {"log": b"x" * 1000}, ended
    text = "head -c 1001 /dev/zero | tr '\\0' x; exit 3"
    ended = ran(kit, text, log, stdout="/out/log")
    assert (ended.exit_code, ended.reason) == (3, EXIT)
    assert ended.usage is not None
    assert "1000 bytes" in ended.usage["outputs_lost"][0]


def test_stream_is_written_neither_through_a_link_nor_over_a_folder(
    kit: Kit, keeper: Keeper, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    ended = ran(kit, f"ln -s {outside}/file {ROOT}/out/log; echo x", stdout="/out/log")
    assert ended.exit_code == 0, ended
    ran(kit, f"rm -r {ROOT}/out; ln -s {outside} {ROOT}/out; echo x", stdout="/out/log", user="0")
    assert list(outside.iterdir()) == []
    for text in (f"mkdir {ROOT}/out/log", f"rm -r {ROOT}/out; : > {ROOT}/out"):
        ended = ran(kit, f"{text}; echo x", stdout="/out/log", user="0")
        assert (ended.failure_kind, ended.reason) == (FailureKind.USER, OUTPUTS), ended
        assert ended.message is not None
        assert ended.message.startswith("stdout: "), ended


def test_binary_output_is_written_byte_for_byte(kit: Kit, keeper: Keeper) -> None:
    text = f"cd {ROOT}/out; head -c 3000000 /dev/urandom > copy; cat copy"
    outputs = (Output("/out/copy", "copy"), Output("/out/log", "log"))
    ended = ran(kit, text, *outputs, stdout="/out/log")
    assert ended.exit_code == 0, ended
    assert keeper.kept[ended.uid]["log"] == keeper.kept[ended.uid]["copy"]


def test_streams_are_complete_after_a_restart_of_the_cell(kit: Kit, keeper: Keeper) -> None:
    text = "i=0; while [ $i -lt 40 ]; do echo $i; i=$((i+1)); sleep 0.03; done"
    launch = script(kit, text, Output("/out/log", "log"), stdout="/out/log")
    kit.driver.start(launch)
    until(lambda: "10\n" in kit.log(launch.uid))
    keeper.serve(kit)
    kit.driver.adopt(launch)
    assert kit.events.ended(launch.uid).exit_code == 0
    lines = "".join(f"{number}\n" for number in range(40))
    assert keeper.kept[launch.uid] == {"log": lines.encode()}


@pytest.mark.engine
def test_streams_of_a_read_only_container_are_files(docker_kit: DockerKit, keeper: Keeper) -> None:
    keeper.serve(docker_kit)
    ended = ran(docker_kit, "echo x", Output("/out/", "all"), stdout="/out/log", read_only=True)
    assert ended.exit_code == 0, ended
    assert keeper.kept[ended.uid] == {"all/log": b"x\n"}


@pytest.mark.engine
def test_image_without_a_shell_has_standard_input_and_output(
    docker_kit: DockerKit, keeper: Keeper, web: Web
) -> None:
    """An image with one static program and nothing else."""
    keeper.serve(docker_kit)
    web.files["/text"] = b"b\na\n"
    repository, tag = "cellrun/test-scratch", docker_kit.installation
    name = f"{repository}:{tag}"
    made = docker_kit.outside.create_container("cellrun/demo:latest", ["true"])
    try:
        stream, _ = docker_kit.outside.get_archive(made["Id"], "/bin/busybox")
        docker_kit.outside.import_image_from_data(b"".join(stream), repository, tag)
    finally:
        docker_kit.outside.remove_container(made["Id"])
    launch = docker_kit.launch(
        "/busybox",
        "sort",
        image=name,
        inputs=(Input("/in/text", f"{web.url}/text"),),
        outputs=(Output("/out/sorted", "sorted"),),
        stdin="/in/text",
        stdout="/out/sorted",
    )
    docker_kit.driver.start(launch)
    ended = docker_kit.events.ended(launch.uid)
    docker_kit.driver.remove(launch.uid)
    until(lambda: not list(docker_kit.driver.find()))
    docker_kit.outside.remove_image(name)
    assert ended.exit_code == 0, ended
    assert keeper.kept[ended.uid] == {"sorted": b"a\nb\n"}
