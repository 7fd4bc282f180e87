"""What attempts leave: outputs of those that succeed, checkpoints of others, on every engine."""

import gzip
import hashlib
import threading
from pathlib import Path
from typing import Any

import pytest

from controlplane.contract.artifacts import CHECKPOINT, path_of
from controlplane.contract.messages.task_options import Output
from controlplane.contract.states import FailureKind
from tests.conformance.keeper import Keeper
from tests.conformance.kit import SECONDS, DockerKit, Kit, Recorder, until
from tests.conformance.test_files import ROOT
from tests.harness.web import Answer, Request, Web
from workers.attempt.events import EndedEvent, Launch
from workers.attempt.outcome import ENGINE, EXIT, OUTPUTS, STOPPED
from workers.output.shipper import LogShipper

TRIES = 7
MODEL = Output("/out/model", "model")


@pytest.fixture
def keeper(web: Web) -> Keeper:
    return Keeper(web)


@pytest.fixture
def kit(real_kit: Kit, keeper: Keeper) -> Kit:
    """A kit whose cell uses the keeper."""
    keeper.serve(real_kit)
    return real_kit


def script(kit: Kit, text: str, *outputs: Output, **spec: Any) -> Launch:
    return kit.launch("sh", "-c", text, outputs=outputs, result_file="/out/result", **spec)


def ran(kit: Kit, text: str, *outputs: Output, **spec: Any) -> EndedEvent:
    launch = script(kit, text, *outputs, **spec)
    kit.driver.start(launch)
    return kit.events.ended(launch.uid)


# ----------------------------------------------------------------------------- outputs


def test_outputs_are_stored_before_the_success_is_reported(kit: Kit, keeper: Keeper) -> None:
    text = (
        f"cd {ROOT}/out; echo 42 > result; echo model > model; mkdir -p logs/deep;"
        " echo a > 'logs/a b'; echo c > logs/deep/.c; : > logs/empty; ln -s /etc/passwd logs/link;"
        " ln logs/empty logs/twin"
    )
    ended = ran(kit, text, MODEL, Output("/out/logs/", "logs"))
    assert (ended.exit_code, ended.result) == (0, "42\n"), ended
    assert keeper.kept[ended.uid] == {
        "model": b"model\n",
        "logs/a b": b"a\n",
        "logs/deep/.c": b"c\n",
        "logs/empty": b"",
        "logs/twin": b"",
    }
    assert ended.outputs is not None
    assert {
        "name": "model",
        "size": 6,
        "sha256": hashlib.sha256(b"model\n").hexdigest(),
        "uri": path_of(ended.uid, "model"),
    } in ended.outputs
    assert {item["name"] for item in ended.outputs} == keeper.kept[ended.uid].keys()
    assert ended.usage is not None
    assert "outputs" in ended.usage["steps"]
    assert not list((kit.home / "work" / ended.uid).glob("*.tar"))


def test_output_folders_exist_and_are_writable_by_any_user(kit: Kit, keeper: Keeper) -> None:
    text = f"echo 1 > {ROOT}/left/here/one && echo 2 > {ROOT}/there/two"
    outputs = (Output("/left/here/one", "one"), Output("/there/two", "two"))
    launch = kit.launch("sh", "-c", text, outputs=outputs, user="1234:1234")
    kit.driver.start(launch)
    assert kit.events.ended(launch.uid).exit_code == 0
    assert keeper.kept[launch.uid] == {"one": b"1\n", "two": b"2\n"}


def test_large_output_is_stored_whole_despite_failing_requests(kit: Kit, keeper: Keeper) -> None:
    troubles = iter([Answer(503), None, Answer(200, b"no json"), None, None, Answer(500)])
    keeper.before = lambda request: next(troubles, None)
    ended = ran(kit, f"head -c 5000000 /dev/urandom > {ROOT}/out/model", MODEL)
    assert ended.outputs is not None, ended
    content = keeper.kept[ended.uid]["model"]
    assert (len(content), ended.outputs[0]["size"]) == (5_000_000, 5_000_000)
    assert hashlib.sha256(content).hexdigest() == ended.outputs[0]["sha256"]


def test_missing_output_is_a_user_failure(kit: Kit, keeper: Keeper) -> None:
    for text in ("true", f"ln -s /etc/passwd {ROOT}/out/model", f"mkfifo {ROOT}/out/model"):
        ended = ran(kit, text, MODEL)
        assert (ended.exit_code, ended.failure_kind, ended.reason) == (
            0,
            FailureKind.USER,
            OUTPUTS,
        ), ended
        assert ended.message is not None
        assert "/out/model" in ended.message
        assert ended.outputs is None
    assert keeper.kept == {}


def test_failed_task_stores_no_outputs(kit: Kit, keeper: Keeper) -> None:
    ended = ran(kit, f"echo x > {ROOT}/out/model; exit 3", MODEL)
    assert (ended.exit_code, ended.reason, ended.outputs) == (3, EXIT, None)
    assert keeper.puts() == []


def test_failed_task_stores_outputs_that_the_job_wants_after_a_failure(
    kit: Kit, keeper: Keeper
) -> None:
    trace = Output("/out/trace", "trace", keep_on_failure=True)
    core = Output("/out/core", "core", keep_on_failure=True)
    text = f"echo x > {ROOT}/out/model; mkdir {ROOT}/out/trace; echo y > {ROOT}/out/trace/1; exit 3"
    ended = ran(kit, text, MODEL, core, trace)
    assert (ended.exit_code, ended.reason) == (3, EXIT)
    assert ended.outputs is not None
    assert [(item["name"], item["size"]) for item in ended.outputs] == [("trace/1", 2)]
    assert keeper.kept[ended.uid] == {"trace/1": b"y\n"}
    assert ended.usage is not None
    assert ended.usage["outputs_lost"] == ["output core: there is no /out/core"]


def test_failed_task_stores_its_checkpoint_and_its_outputs(kit: Kit, keeper: Keeper) -> None:
    trace = Output("/out/trace", "trace", keep_on_failure=True)
    text = f"echo x > {ROOT}/out/trace; exit 3"
    ended = ran(kit, text, trace, checkpoint_path="/ckpt")
    assert ended.outputs is not None
    assert [item["name"] for item in ended.outputs] == [CHECKPOINT, "trace"]


def test_missing_output_of_a_success_keeps_those_wanted_after_a_failure(
    kit: Kit, keeper: Keeper
) -> None:
    trace = Output("/out/trace", "trace", keep_on_failure=True)
    ended = ran(kit, f"echo x > {ROOT}/out/trace", MODEL, trace)
    assert (ended.exit_code, ended.failure_kind, ended.reason) == (0, FailureKind.USER, OUTPUTS)
    assert ended.message is not None
    assert "there is no /out/model" in ended.message
    assert keeper.kept[ended.uid] == {"trace": b"x\n"}


def test_stopped_task_stores_outputs_that_the_job_wants_after_a_failure(
    kit: Kit, keeper: Keeper
) -> None:
    trace = Output("/out/trace", "trace", keep_on_failure=True)
    launch = script(kit, f"echo x > {ROOT}/out/trace; echo ready; sleep 1000", trace)
    kit.driver.start(launch)
    kit.wait_until_ready(launch.uid)
    kit.driver.stop(launch.uid, grace_seconds=0.2, force=False)
    ended = kit.events.ended(launch.uid)
    assert (ended.failure_kind, ended.reason) == (None, STOPPED)
    assert keeper.kept[ended.uid] == {"trace": b"x\n"}


def test_end_is_reported_even_if_storing_checkpoint_or_log_fails(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> bool:
        raise LookupError("of no known kind")

    monkeypatch.setattr("workers.attempt.steps.checkpoint.save", fail)
    ended = ran(kit, "exit 3", checkpoint_path="/ckpt")
    assert (ended.exit_code, ended.reason) == (3, EXIT)
    assert ended.usage is not None
    assert ended.usage["checkpoint_lost"] == "of no known kind"
    monkeypatch.setattr(LogShipper, "finish", fail)
    ended = ran(kit, "exit 3", checkpoint_path="/ckpt")
    assert (ended.failure_kind, ended.reason) == (FailureKind.SYSTEM, ENGINE)


@pytest.mark.parametrize("status", [503, 507])
def test_unavailable_or_full_output_store_is_a_system_failure(
    kit: Kit, keeper: Keeper, status: int
) -> None:
    keeper.before = lambda request: Answer(status)
    ended = ran(kit, f"echo x > {ROOT}/out/model", MODEL)
    assert (ended.failure_kind, ended.reason, ended.exit_code) == (FailureKind.SYSTEM, OUTPUTS, 0)
    assert keeper.puts() == ["model"] * TRIES


def test_output_too_large_for_the_store_is_a_user_failure(kit: Kit, keeper: Keeper) -> None:
    keeper.before = lambda request: Answer(413, b'{"detail": "at most 5 bytes"}')
    ended = ran(kit, f"echo too large > {ROOT}/out/model", MODEL)
    assert (ended.failure_kind, ended.reason) == (FailureKind.USER, OUTPUTS)
    assert ended.message is not None
    assert "at most 5 bytes" in ended.message
    assert keeper.puts() == ["model"]


def test_output_above_the_limit_of_the_project_is_a_user_failure(kit: Kit, keeper: Keeper) -> None:
    refusal = b'{"code": "stored_bytes", "detail": "project a/b stores 9 bytes"}'
    keeper.before = lambda request: Answer(507, refusal)
    for size in (1, 2_000_000):  # the larger one is announced first
        ended = ran(kit, f"head -c {size} /dev/zero > {ROOT}/out/model", MODEL)
        assert (ended.failure_kind, ended.reason) == (FailureKind.USER, OUTPUTS)
        assert ended.message is not None
        assert "project a/b stores 9 bytes" in ended.message
    assert keeper.puts() in (["model"], ["model"] * 2)


def test_checkpoint_above_the_limit_of_the_project_is_lost_and_named(
    kit: Kit, keeper: Keeper
) -> None:
    keeper.before = lambda request: Answer(507, b'{"code": "stored_bytes", "detail": "no space"}')
    ended = ran(kit, "exit 3", checkpoint_path="/ckpt")
    assert (ended.exit_code, ended.reason) == (3, EXIT)
    assert ended.usage is not None
    assert "no space" in ended.usage["checkpoint_lost"]
    assert keeper.puts() == [CHECKPOINT]


def test_outputs_over_the_cell_limit_are_not_uploaded(real_kit: Kit, keeper: Keeper) -> None:
    keeper.serve(real_kit, max_files_bytes=1_000_000)
    ended = ran(real_kit, f"head -c 2000000 /dev/zero > {ROOT}/out/model", MODEL)
    assert (ended.failure_kind, ended.reason) == (FailureKind.USER, OUTPUTS)
    assert keeper.puts() == []


def test_stop_cancels_the_storing_of_outputs(kit: Kit, keeper: Keeper) -> None:
    may_answer = threading.Event()

    def hold(request: Request) -> Answer:
        may_answer.wait(60)
        return Answer(503)

    keeper.before = hold
    launch = script(kit, f"echo x > {ROOT}/out/model", MODEL)
    kit.driver.start(launch)
    until(keeper.puts)
    kit.driver.stop(launch.uid, grace_seconds=10.0, force=False)
    may_answer.set()
    ended = kit.events.ended(launch.uid)
    assert (ended.failure_kind, ended.reason, ended.outputs) == (None, STOPPED, None)
    assert keeper.kept == {}


def test_restarted_cell_stores_interrupted_outputs_again(kit: Kit, keeper: Keeper) -> None:
    may_answer = threading.Event()

    def hold(request: Request) -> None:
        if "second" in request.path:
            may_answer.wait(60)

    keeper.before = hold
    launch = script(
        kit,
        f"cd {ROOT}/out; echo 1 > first; echo 2 > second",
        Output("/out/first", "first"),
        Output("/out/second", "second"),
    )
    kit.driver.start(launch)
    until(lambda: keeper.puts() == ["first", "second"])
    kit.events = Recorder()
    dying = [thread for thread in threading.enumerate() if thread.name.startswith("attempt-")]
    keeper.serve(kit)
    may_answer.set()
    # A process that died has no threads; these would still tidy up where their successor works.
    for thread in dying:
        thread.join(SECONDS)
    kit.driver.adopt(launch)
    ended = kit.events.ended(launch.uid)
    assert ended.outputs is not None, ended
    assert [item["name"] for item in ended.outputs] == ["first", "second"]
    assert keeper.kept[launch.uid] == {"first": b"1\n", "second": b"2\n"}


# ----------------------------------------------------------------------------- elsewhere


def test_outputs_are_stored_below_the_output_base_of_the_job(
    real_kit: Kit, keeper: Keeper, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    keeper.serve(real_kit, file_roots=(shared,))
    launch = script(real_kit, f"echo x > {ROOT}/out/model", Output("/out/model", "a b/model"))
    keeper.brief(launch.uid, output_base=f"file://{shared}/base/x7/run")
    real_kit.driver.start(launch)
    ended = real_kit.events.ended(launch.uid)
    assert ended.outputs is not None, ended
    assert ended.outputs[0]["uri"] == f"file://{shared}/base/x7/run/a%20b/model"
    assert [path for path in shared.rglob("*") if path.is_file()] == [
        shared / "base/x7/run/a b/model"
    ]
    assert keeper.puts() == []


def test_output_base_not_allowed_by_the_cell_is_a_user_failure(kit: Kit, keeper: Keeper) -> None:
    for base in ("file:///tmp/out", "s3://bucket/x", "http://127.0.0.1/x", "memory://x"):
        launch = script(kit, f"echo x > {ROOT}/out/model", MODEL)
        keeper.brief(launch.uid, output_base=base)
        kit.driver.start(launch)
        ended = kit.events.ended(launch.uid)
        assert (ended.failure_kind, ended.reason) == (FailureKind.USER, OUTPUTS), ended


# ----------------------------------------------------------------------------- checkpoints

# Renamed into place: a kill between the two leaves the number before, if there is one.
COUNT = (
    f"cd {ROOT}/ckpt; n=$(cat n 2>/dev/null || echo 0); echo from $n;"
    " while :; do n=$((n+1)); echo $n > m; mv m n;"
    " [ $n != 1 ] || echo counts; sleep 0.01; done"
)


def follow_up(kit: Kit, keeper: Keeper, ended: EndedEvent, text: str, **spec: Any) -> EndedEvent:
    """The end of the next attempt, which finds what the last one left."""
    launch = script(kit, text, checkpoint_path="/ckpt", **spec)
    keeper.brief(launch.uid, checkpoint=keeper.checkpoint_of(ended))
    kit.driver.start(launch)
    return kit.events.ended(launch.uid)


def test_preempted_task_resumes_from_its_checkpoint(kit: Kit, keeper: Keeper) -> None:
    launch = script(kit, COUNT, checkpoint_path="/ckpt", user="1000:1000")
    kit.driver.start(launch)
    until(lambda: "counts" in kit.log(launch.uid))
    kit.driver.stop(launch.uid, grace_seconds=0.2, force=False)
    ended = kit.events.ended(launch.uid)
    assert ended.reason == STOPPED
    text = f"cd {ROOT}/ckpt; cat n; echo 1 >> n"
    second = follow_up(kit, keeper, ended, text, user="1000:1000")
    assert second.exit_code == 0, second
    assert int(kit.log(second.uid)) > 0
    assert second.outputs is None, "a success leaves nothing for a next attempt"


def test_checkpoint_of_a_failed_task_is_restored_unchanged(kit: Kit, keeper: Keeper) -> None:
    text = (
        f"cd {ROOT}/ckpt; mkdir deep; echo x > deep/run; chmod 755 deep/run; ln -s deep/run link;"
        " ln deep/run twin; exit 3"
    )
    first = ran(kit, text, checkpoint_path="/ckpt")
    assert (first.exit_code, first.reason) == (3, EXIT)
    text = (
        f"cd {ROOT}/ckpt; test -x deep/run && test -L link && cat link twin && test ! -e /ckpt/ckpt"
        " && exit 4"
    )
    second = follow_up(kit, keeper, first, text)
    assert (second.exit_code, kit.log(second.uid)) == (4, "x\nx\n"), second
    third = follow_up(kit, keeper, second, f"cat {ROOT}/ckpt/link")
    assert kit.log(third.uid) == "x\n"


def test_unstored_checkpoint_does_not_change_the_outcome(kit: Kit, keeper: Keeper) -> None:
    keeper.before = lambda request: Answer(503)
    ended = ran(kit, "exit 3", checkpoint_path="/ckpt")
    assert (ended.exit_code, ended.reason, ended.outputs) == (3, EXIT, None)
    assert ended.usage is not None
    assert "503" in ended.usage["checkpoint_lost"]
    assert keeper.puts() == [CHECKPOINT] * TRIES


def test_checkpoint_with_a_wrong_checksum_is_a_system_failure(kit: Kit, keeper: Keeper) -> None:
    first = ran(kit, "exit 3", checkpoint_path="/ckpt")
    left = keeper.checkpoint_of(first)
    launch = script(kit, "true", checkpoint_path="/ckpt")
    keeper.brief(launch.uid, checkpoint={**left, "sha256": "0" * 64})
    kit.driver.start(launch)
    ended = kit.events.ended(launch.uid)
    assert (ended.failure_kind, ended.started_at) == (FailureKind.SYSTEM, None)


def test_compressed_checkpoint_of_another_cell_is_not_unpacked(kit: Kit, keeper: Keeper) -> None:
    """It may be a thousand times larger than the limit of its size permits."""
    first = ran(kit, f"echo x > {ROOT}/ckpt/a; exit 3", checkpoint_path="/ckpt")
    left = keeper.checkpoint_of(first)
    bomb = gzip.compress(keeper.web.files["/left"])
    keeper.web.files["/left"] = bomb
    sha256 = hashlib.sha256(bomb).hexdigest()
    launch = script(kit, "true", checkpoint_path="/ckpt")
    keeper.brief(launch.uid, checkpoint={**left, "size": len(bomb), "sha256": sha256})
    kit.driver.start(launch)
    ended = kit.events.ended(launch.uid)
    assert (ended.failure_kind, ended.started_at) == (FailureKind.SYSTEM, None), ended
    assert "not a plain tar" in (ended.message or ""), ended


@pytest.mark.engine
def test_read_only_container_stores_outputs_and_checkpoints(
    docker_kit: DockerKit, keeper: Keeper
) -> None:
    keeper.serve(docker_kit)
    text = "echo x > /ckpt/state; echo y > /out/model; exit 3"
    first = ran(docker_kit, text, MODEL, checkpoint_path="/ckpt", read_only=True)
    assert first.exit_code == 3
    text = "cat /ckpt/state > /out/model"
    launch = script(docker_kit, text, MODEL, checkpoint_path="/ckpt", read_only=True)
    keeper.brief(launch.uid, checkpoint=keeper.checkpoint_of(first))
    docker_kit.driver.start(launch)
    second = docker_kit.events.ended(launch.uid)
    assert second.exit_code == 0, second
    assert keeper.kept[second.uid] == {"model": b"x\n"}
