"""Output, result and inputs, for every driver that runs programs."""

import hashlib
import json
from typing import Any

from controlplane.contract.messages.orders import Input
from controlplane.contract.messages.reports import COMMAND, INPUT_CORRUPT, SPEC
from controlplane.contract.states import FailureKind
from tests.conformance.kit import Kit, until
from tests.harness.web import Answer, Request, Web
from workers.attempt.capture import cut_note
from workers.attempt.events import EndedEvent
from workers.attempt.outcome import INPUTS
from workers.drivers.registry import make_driver

ROOT = "${CELLRUN_ROOT:-}"  # where a task's paths begin: at / in a container


def ran(kit: Kit, script: str, **spec: Any) -> EndedEvent:
    """The end of a shell script."""
    launch = kit.launch("sh", "-c", script, **spec)
    kit.driver.start(launch)
    return kit.events.ended(launch.uid)


# ----------------------------------------------------------------------------- output


def test_output_is_kept_by_stream_and_byte_for_byte(real_kit: Kit) -> None:
    ended = ran(real_kit, r"printf 'out \000\377 bytes\n'; printf 'error\n' >&2")
    folder = real_kit.home / "logs" / ended.uid
    assert (folder / "stdout").read_bytes() == b"out \x00\xff bytes\n"
    assert (folder / "stderr").read_bytes() == b"error\n"


def test_order_and_output_folders_are_private_to_the_cell_user(real_kit: Kit) -> None:
    for name in ("work", "logs"):
        assert (real_kit.home / name).stat().st_mode & 0o777 == 0o700, name


def test_output_is_available_while_the_program_runs(real_kit: Kit) -> None:
    launch = real_kit.launch("sh", "-c", "echo first; sleep 300")
    real_kit.driver.start(launch)
    until(lambda: real_kit.log(launch.uid) == "first\n")


def test_output_continues_across_cell_restarts_without_loss_or_repetition(real_kit: Kit) -> None:
    script = (
        "i=0; while [ $i -lt 120 ]; do echo line $i; echo err $i >&2; i=$((i+1)); sleep 0.03; done"
    )
    launch = real_kit.launch("sh", "-c", script)
    real_kit.driver.start(launch)
    for line in ("line 20\n", "line 50\n", "line 80\n"):
        until(lambda line=line: line in real_kit.log(launch.uid))  # type: ignore[misc]
        real_kit.begin_again()
        real_kit.driver.adopt(launch)
    assert real_kit.events.ended(launch.uid).exit_code == 0
    assert real_kit.log(launch.uid) == "".join(f"line {number}\n" for number in range(120))
    assert real_kit.log(launch.uid, "stderr") == "".join(f"err {number}\n" for number in range(120))


def test_long_lines_are_whole(real_kit: Kit) -> None:
    ended = ran(real_kit, "head -c 200000 /dev/zero | tr '\\0' x; echo; echo end; sleep 0.8")
    assert real_kit.log(ended.uid) == "x" * 200000 + "\nend\n"


def test_long_line_survives_a_cell_restart_while_the_other_stream_writes(real_kit: Kit) -> None:
    script = "head -c 20000 /dev/zero | tr '\\0' x; sleep 0.5; echo err >&2; sleep 4; echo end"
    launch = real_kit.launch("sh", "-c", script)
    real_kit.driver.start(launch)
    until(lambda: real_kit.log(launch.uid, "stderr") == "err\n")
    real_kit.begin_again()
    real_kit.driver.adopt(launch)
    assert real_kit.events.ended(launch.uid).exit_code == 0
    assert real_kit.log(launch.uid) == "x" * 20000 + "end\n"
    assert real_kit.log(launch.uid, "stderr") == "err\n"


def test_output_over_the_limit_is_truncated_with_a_note(real_kit: Kit) -> None:
    real_kit.driver.close()
    config = real_kit.config(max_log_bytes=1000)
    real_kit.driver = make_driver(config, real_kit.events)
    ended = ran(
        real_kit, "head -c 5000 /dev/zero | tr '\\0' x; echo short >&2; sleep 0.7; echo more"
    )
    assert real_kit.log(ended.uid) == "x" * 1000 + cut_note(1000).decode()
    assert real_kit.log(ended.uid, "stderr") == "short\n"


# ----------------------------------------------------------------------------- result


def test_result_folder_is_created_and_its_result_read(real_kit: Kit) -> None:
    ended = ran(real_kit, f"echo 42 > {ROOT}/some/new/result", result_file="/some/new/result")
    assert (ended.exit_code, ended.result, ended.result_truncated) == (0, "42\n", False)


def test_result_is_cut_after_10240_bytes(real_kit: Kit) -> None:
    script = f"head -c 10241 /dev/zero | tr '\\0' r > {ROOT}/out/result"
    ended = ran(real_kit, script, result_file="/out/result")
    assert (ended.result, ended.result_truncated) == ("r" * 10240, True)


def test_result_is_cut_at_a_character_boundary(real_kit: Kit) -> None:
    script = f"{{ head -c 10239 /dev/zero | tr '\\0' r; printf '\\303\\251'; }} > {ROOT}/out/result"
    ended = ran(real_kit, script, result_file="/out/result")
    assert (ended.result, ended.result_truncated) == ("r" * 10239, True)


def test_invalid_utf_8_in_a_result_is_replaced(real_kit: Kit) -> None:
    ended = ran(real_kit, rf"printf 'a\377b' > {ROOT}/out/result", result_file="/out/result")
    assert ended.result == "a\ufffdb"


def test_result_is_absent_without_a_regular_file_or_without_success(
    real_kit: Kit,
) -> None:
    assert ran(real_kit, "true", result_file="/out/result").result is None
    script = f"echo 1 > {ROOT}/out/result; exit 1"
    assert ran(real_kit, script, result_file="/out/result").result is None
    script = f"ln -s /etc/passwd {ROOT}/out/result"
    assert ran(real_kit, script, result_file="/out/result").result is None
    script = f"mkdir {ROOT}/out/result"
    assert ran(real_kit, script, result_file="/out/result").result is None


def test_result_file_path_leading_outside_is_refused(real_kit: Kit) -> None:
    ended = ran(real_kit, "true", result_file="/out/../../etc/result")
    assert (ended.failure_kind, ended.reason, ended.started_at) == (FailureKind.USER, SPEC, None)


# ----------------------------------------------------------------------------- inputs


def test_inputs_are_readable_at_their_paths(real_kit: Kit, web: Web) -> None:
    web.files = {"/text?sig=1": b"the text\n", "/two": b"two\n"}
    inputs = (
        Input(
            "/in/deep/down/text", f"{web.url}/text?sig=1", hashlib.sha256(b"the text\n").hexdigest()
        ),
        Input("/tmp/two", f"{web.url}/two"),
    )
    ended = ran(real_kit, f"cat {ROOT}/in/deep/down/text {ROOT}/tmp/two", inputs=inputs)
    assert ended.exit_code == 0, ended
    assert real_kit.log(ended.uid) == "the text\ntwo\n"


def test_bundle_becomes_a_folder_of_files(real_kit: Kit, web: Web) -> None:
    lines = [{"name": "0", "content": "zero\n"}, {"name": "1", "content": "one é\n"}]
    web.files["/bundle"] = "\n".join(json.dumps(line) for line in lines).encode()
    inputs = (Input("/in/parts/", f"{web.url}/bundle", bundle=True),)
    ended = ran(real_kit, f"cd {ROOT}/in/parts && ls && cat 0 1", inputs=inputs)
    assert real_kit.log(ended.uid) == "0\n1\nzero\none é\n"


def test_empty_bundle_becomes_an_empty_folder(real_kit: Kit, web: Web) -> None:
    web.files["/bundle"] = b""
    inputs = (Input("/in/parts/", f"{web.url}/bundle", bundle=True),)
    assert ran(real_kit, f"cd {ROOT}/in/parts", inputs=inputs).exit_code == 0


def test_large_input_arrives_whole(real_kit: Kit, web: Web) -> None:
    web.files["/large"] = bytes(range(256)) * 40_000
    inputs = (Input("/in/large", f"{web.url}/large"),)
    ended = ran(real_kit, f"sha256sum < {ROOT}/in/large", inputs=inputs)
    assert hashlib.sha256(web.files["/large"]).hexdigest() in real_kit.log(ended.uid)


def test_input_with_another_checksum_is_a_system_failure(real_kit: Kit, web: Web) -> None:
    web.files["/text"] = b"changed"
    inputs = (Input("/in/text", f"{web.url}/text?secret", "0" * 64),)
    web.route = lambda request: Answer(200, b"changed")
    ended = ran(real_kit, "true", inputs=inputs)
    assert (ended.failure_kind, ended.reason) == (FailureKind.SYSTEM, INPUT_CORRUPT)
    assert (ended.exit_code, ended.started_at) == (None, None)
    assert ended.message is not None
    assert "sha256" in ended.message


def test_input_fetch_is_retried_until_it_succeeds(real_kit: Kit, web: Web) -> None:
    def third_time(request: Request) -> Answer:
        return Answer(200, b"at last\n") if len(web.requests) == 3 else Answer(503)

    web.route = third_time
    inputs = (Input("/in/text", f"{web.url}/text"),)
    ended = ran(real_kit, f"cat {ROOT}/in/text", inputs=inputs)
    assert real_kit.log(ended.uid) == "at last\n"


def test_unavailable_input_is_a_system_failure_that_hides_the_signature(
    real_kit: Kit, web: Web
) -> None:
    inputs = (Input("/in/text", f"{web.url}/text?sig=hush"),)
    ended = ran(real_kit, "true", inputs=inputs)
    assert (ended.failure_kind, ended.reason) == (FailureKind.SYSTEM, INPUTS)
    assert len(web.requests) == 3
    assert ended.message is not None
    assert "404" in ended.message
    assert "hush" not in ended.message


def test_input_path_or_url_leading_outside_is_refused(real_kit: Kit, web: Web) -> None:
    for path in ("/in/../../etc/x", "relative", "/", "/in/.."):
        ended = ran(real_kit, "true", inputs=(Input(path, f"{web.url}/x"),))
        assert (ended.failure_kind, ended.reason) == (FailureKind.USER, INPUTS), path
    web.files["/bundle"] = json.dumps({"name": "../x", "content": ""}).encode()
    ended = ran(real_kit, "true", inputs=(Input("/in", f"{web.url}/bundle", bundle=True),))
    assert (ended.failure_kind, ended.reason) == (FailureKind.USER, INPUTS)
    ended = ran(real_kit, "true", inputs=(Input("/in/x", "file:///etc/passwd"),))
    assert (ended.failure_kind, ended.reason) == (FailureKind.USER, INPUTS)


# ----------------------------------------------------------------------------- the program


def test_attempt_variables_override_the_environment_of_the_spec(real_kit: Kit) -> None:
    env = {"COLOUR": "blue", "CELLRUN_ATTEMPT_UID": "forged"}
    ended = ran(real_kit, "echo $COLOUR $CELLRUN_ATTEMPT_UID", env=env)
    assert real_kit.log(ended.uid) == f"blue {ended.uid}\n"


def test_missing_command_ends_with_exit_code_127(real_kit: Kit) -> None:
    launch = real_kit.launch("no-such-program")
    real_kit.driver.start(launch)
    ended = real_kit.events.ended(launch.uid)
    assert (ended.exit_code, ended.failure_kind, ended.reason) == (127, FailureKind.USER, COMMAND)
    assert ended.started_at is None


def test_entrypoint_precedes_the_command(real_kit: Kit) -> None:
    launch = real_kit.launch("three", entrypoint=("echo", "two"))
    real_kit.driver.start(launch)
    real_kit.events.ended(launch.uid)
    assert real_kit.log(launch.uid) == "two three\n"


def test_command_starts_in_its_workdir(real_kit: Kit) -> None:
    ended = ran(real_kit, "pwd", workdir="/tmp")
    assert real_kit.log(ended.uid).endswith("/tmp\n")


def test_children_end_with_their_program(real_kit: Kit) -> None:
    ended = ran(
        real_kit, "(sleep 300; echo late) & setsid sh -c 'sleep 300; echo late' & echo over"
    )
    assert ended.exit_code == 0
    assert real_kit.log(ended.uid) == "over\n"
