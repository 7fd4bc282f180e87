"""Inputs, outputs and checkpoints in an object store: a real S3 server, and the real client."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
import requests
import s3fs

from controlplane.config.stack.parts.ports import free_port
from controlplane.contract.messages.orders import Input
from controlplane.contract.messages.task_options import Output
from controlplane.contract.states import FailureKind
from tests.conformance.keeper import Keeper
from tests.conformance.kit import ProcessKit, until
from tests.conformance.test_artifacts import script
from tests.harness.web import Web
from workers.attempt.outcome import INPUTS, OUTPUTS, STOPPED
from workers.remote_files import Storage

pytestmark = pytest.mark.stack  # a server of 150 MB


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server, and an environment that leads to it, as a cell's would."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    log = tmp_path_factory.mktemp("s3") / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=output,
            stderr=output,
        )
    environment = {
        "AWS_ACCESS_KEY_ID": "cell",
        "AWS_SECRET_ACCESS_KEY": "hush",
        "AWS_ENDPOINT_URL": url,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        until(lambda: _answers(url))
        assert requests.put(f"{url}/bucket", timeout=10).status_code == 200
        yield url
    finally:
        os.environ.clear()
        os.environ.update(before)
        server.terminate()
        server.wait()
        s3fs.S3FileSystem.clear_instance_cache()


def _answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=1).ok
    except requests.RequestException:
        return False


@pytest.fixture
def bucket(endpoint: str) -> s3fs.S3FileSystem:
    return fsspec.filesystem("s3")


def test_task_reads_inputs_and_stores_outputs_in_an_object_store(
    process_kit: ProcessKit, web: Web, bucket: s3fs.S3FileSystem
) -> None:
    keeper = Keeper(web)
    keeper.serve(process_kit, file_systems=("s3",))
    content = bytes(range(256)) * 40_000
    bucket.pipe("bucket/in/large", content)
    sha256 = hashlib.sha256(content).hexdigest()
    launch = script(
        process_kit,
        "cd $CELLRUN_ROOT; cp in/large out/model; mkdir out/more; echo x > 'out/more/a b'",
        Output("/out/model", "model"),
        Output("/out/more", "more"),
        inputs=(Input("/in/large", "s3://bucket/in/large", sha256, named=True),),
    )
    keeper.brief(launch.uid, output_base="s3://bucket/base/x7/run")
    process_kit.driver.start(launch)
    ended = process_kit.events.ended(launch.uid)
    assert ended.outputs is not None, ended
    assert {item["uri"] for item in ended.outputs} == {
        "s3://bucket/base/x7/run/model",
        "s3://bucket/base/x7/run/more/a b",
    }
    assert ended.outputs[0]["sha256"] == sha256
    assert bucket.cat("bucket/base/x7/run/model") == content
    assert bucket.cat("bucket/base/x7/run/more/a b") == b"x\n"
    assert keeper.puts() == []


def test_inputs_are_read_with_the_credentials_of_the_settings(
    process_kit: ProcessKit, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may come from files, so that no variable contains them."""
    credentials = {
        "AWS_ACCESS_KEY_ID": "id-of-the-cell",
        "AWS_SECRET_ACCESS_KEY": "hush",
        "AWS_SESSION_TOKEN": "token-of-the-cell",
    }
    for name in credentials:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", web.url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    keeper = Keeper(web)
    keeper.serve(process_kit, file_systems=("s3",), store_credentials=credentials)
    web.files["/bucket/in/small"] = b"content"
    launch = script(
        process_kit,
        "cp $CELLRUN_ROOT/in/small $CELLRUN_ROOT/out/result",
        inputs=(Input("/in/small", "s3://bucket/in/small", named=True),),
    )
    keeper.brief(launch.uid)
    process_kit.driver.start(launch)
    ended = process_kit.events.ended(launch.uid)
    assert ended.result == "content", ended
    found = [request for request in web.requests if request.path == "/bucket/in/small"]
    assert found
    for request in found:
        assert "Credential=id-of-the-cell/" in request.headers["Authorization"]
        assert request.headers["X-Amz-Security-Token"] == "token-of-the-cell"


def test_outputs_are_written_to_exact_addresses_in_an_object_store(
    process_kit: ProcessKit, web: Web, bucket: s3fs.S3FileSystem
) -> None:
    keeper = Keeper(web)
    keeper.serve(process_kit, file_systems=("s3",))
    text = "cd $CELLRUN_ROOT/out; echo {0} > model; mkdir -p runs/1; echo {0} > 'runs/1/a b.csv'"
    outputs = (
        Output("/out/model", "model", url="s3://bucket/exact/{index}/model.bin"),
        Output("/out/**/*.csv", "tables", url="s3://bucket/exact/tables/"),
    )
    for number in ("1", "2 and longer"):
        launch = script(process_kit, text.format(number), *outputs)
        keeper.brief(launch.uid, output_base="s3://bucket/base/x7/run")
        process_kit.driver.start(launch)
        ended = process_kit.events.ended(launch.uid)
        assert ended.outputs is not None, ended
        assert {item["name"]: item["uri"] for item in ended.outputs} == {
            "model": "s3://bucket/exact/0/model.bin",
            "tables/runs/1/a b.csv": "s3://bucket/exact/tables/runs/1/a b.csv",
        }
        bucket.invalidate_cache()
        assert sorted(bucket.find("bucket/exact")) == [
            "bucket/exact/0/model.bin",
            "bucket/exact/tables/runs/1/a b.csv",
        ]
        assert bucket.cat("bucket/exact/0/model.bin") == f"{number}\n".encode()
    # The address of one attempt is an input of another task.
    inputs = (Input("/in/model", "s3://bucket/exact/0/model.bin", named=True),)
    launch = script(process_kit, "cat $CELLRUN_ROOT/in/model", inputs=inputs)
    process_kit.driver.start(launch)
    assert process_kit.events.ended(launch.uid).exit_code == 0
    assert process_kit.log(launch.uid) == "2 and longer\n"
    outputs = (Output("/out/model", "model", url="s3://no-such-bucket/model"),)
    launch = script(process_kit, text, *outputs)
    process_kit.driver.start(launch)
    ended = process_kit.events.ended(launch.uid)
    assert (ended.failure_kind, ended.reason) == (FailureKind.USER, OUTPUTS), ended


def test_checkpoint_is_passed_on_through_an_object_store(
    process_kit: ProcessKit, web: Web, bucket: s3fs.S3FileSystem
) -> None:
    keeper = Keeper(web)
    keeper.serve(process_kit, file_systems=("s3",))
    text = "cd $CELLRUN_ROOT/ckpt; echo $$ > state; sleep 300"
    launch = script(process_kit, text, checkpoint_path="/ckpt")
    keeper.brief(launch.uid, output_base="s3://bucket/base/first")
    process_kit.driver.start(launch)
    until((process_kit.home / "work" / launch.uid / "root/ckpt/state").exists)
    process_kit.driver.stop(launch.uid, grace_seconds=0.1, force=False)
    first = process_kit.events.ended(launch.uid)
    assert first.reason == STOPPED
    assert first.outputs is not None, first
    follower = script(process_kit, "cat $CELLRUN_ROOT/ckpt/state", checkpoint_path="/ckpt")
    keeper.brief(follower.uid, checkpoint=dict(first.outputs[0]))
    process_kit.driver.start(follower)
    second = process_kit.events.ended(follower.uid)
    assert second.exit_code == 0, second
    assert process_kit.log(second.uid).strip().isdecimal()


def test_missing_object_or_bucket_is_a_user_failure(
    process_kit: ProcessKit, web: Web, bucket: s3fs.S3FileSystem
) -> None:
    keeper = Keeper(web)
    keeper.serve(process_kit, file_systems=("s3",))
    inputs = (Input("/in/x", "s3://bucket/none", named=True),)
    launch = script(process_kit, "true", inputs=inputs)
    process_kit.driver.start(launch)
    ended = process_kit.events.ended(launch.uid)
    assert (ended.failure_kind, ended.reason) == (FailureKind.USER, INPUTS), ended
    launch = script(process_kit, "echo x > $CELLRUN_ROOT/out/x", Output("/out/x", "x"))
    keeper.brief(launch.uid, output_base="s3://no-such-bucket/base")
    process_kit.driver.start(launch)
    ended = process_kit.events.ended(launch.uid)
    assert (ended.failure_kind, ended.reason) == (FailureKind.USER, OUTPUTS), ended


def test_cancelled_upload_leaves_no_object(bucket: s3fs.S3FileSystem, tmp_path: Path) -> None:
    source = tmp_path / "large"
    source.write_bytes(b"x" * 120_000_000)  # more than one part of an upload
    with source.open("rb") as file:
        half = Storage(file_systems=["s3"]).write("s3://bucket/half", file)
        for done in half:
            if done > 110_000_000:
                break
        half.close()
    del half
    bucket.invalidate_cache()
    assert not bucket.exists("bucket/half")
