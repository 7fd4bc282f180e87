"""GPUs of containers: the ones that a container requests, and engines without any."""

import uuid
from pathlib import Path

import pytest

from controlplane.contract.states import FailureKind
from tests.conformance.kit import DockerKit
from workers.attempt.outcome import ENGINE
from workers.attempt.runtime import EngineError
from workers.drivers.docker.driver import DockerEngine

pytestmark = pytest.mark.engine


@pytest.fixture
def engine(docker_kit: DockerKit, tmp_path: Path) -> DockerEngine:
    return DockerEngine(installation=docker_kit.installation, cell="cell-1", home=tmp_path, gpus=3)


def requested_gpus(kit: DockerKit, uid: str) -> list[str]:
    [request] = kit.inspect(uid)["HostConfig"]["DeviceRequests"]
    assert request["Capabilities"] == [["gpu"]]
    return list(request["DeviceIDs"])


def test_containers_get_disjoint_gpus(docker_kit: DockerKit, engine: DockerEngine) -> None:
    launches = [
        docker_kit.launch("true", resources={"gpu": count}, uid=str(uuid.uuid4()))
        for count in (1, 2, 1)
    ]
    first, second, third = launches
    for launch in (first, second):
        engine.create(launch, ())
    assert (requested_gpus(docker_kit, first.uid), requested_gpus(docker_kit, second.uid)) == (
        ["0"],
        ["1", "2"],
    )
    with pytest.raises(EngineError, match="1 GPUs are requested, and 0 of 3 are free"):
        engine.create(third, ())
    engine.remove(first.uid)
    engine.create(third, ())
    assert requested_gpus(docker_kit, third.uid) == ["0"]


def test_container_without_gpus_requests_no_device(
    docker_kit: DockerKit, engine: DockerEngine
) -> None:
    launch = docker_kit.launch("true", resources={"cpu_millis": 100})
    engine.create(launch, ())
    assert not docker_kit.inspect(launch.uid)["HostConfig"]["DeviceRequests"]


def test_missing_gpu_driver_of_the_engine_is_a_system_failure(
    docker_kit: DockerKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = docker_kit.config
    monkeypatch.setattr(
        docker_kit, "config", lambda **changes: config(capacity={"gpu": 1}, **changes)
    )
    docker_kit.begin_again()
    launch = docker_kit.launch("true", resources={"gpu": 1})
    docker_kit.driver.start(launch)
    ended = docker_kit.events.ended(launch.uid)
    assert (ended.failure_kind, ended.reason) == (FailureKind.SYSTEM, ENGINE)
    assert ended.message is not None
    assert "could not select device driver" in ended.message
    assert "tried 3 times" in ended.message
