"""Labels and volumes of an image do not change what its task holds."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.contract.states import FailureKind
from tests.conformance.kit import IMAGE, DockerKit, until
from workers.attempt.outcome import DISK_LIMIT
from workers.drivers.docker.driver import DockerEngine
from workers.drivers.docker.networks import CellNetworks
from workers.drivers.docker.volumes import volume_bytes

pytestmark = pytest.mark.engine

CHANGES = [
    "LABEL cellrun.gpus=0,1,2 cellrun.gang=77 cellrun.network=tasks cellrun.job=1"
    " cellrun.attempt=stranger",
    "VOLUME /data",
]


@pytest.fixture
def claiming(docker_kit: DockerKit) -> Iterator[str]:
    """The demo image with labels of ours and a volume."""
    name, api = f"cellrun-test/claims-{uuid.uuid4().hex[:8]}", docker_kit.outside
    container = api.create_container(IMAGE, ["true"])["Id"]
    try:
        api.commit(container, name, "latest", changes=CHANGES)
    finally:
        api.remove_container(container, v=True)
    yield f"{name}:latest"
    api.remove_image(f"{name}:latest", force=True)


def test_image_labels_reserve_no_gpu(docker_kit: DockerKit, claiming: str, tmp_path: Path) -> None:
    engine = DockerEngine(
        installation=docker_kit.installation, cell="cell-1", home=tmp_path, gpus=3
    )
    engine.create(docker_kit.launch("true", image=claiming), ())
    launch = docker_kit.launch("true", resources={"gpu": 3})
    engine.create(launch, ())
    [request] = docker_kit.inspect(launch.uid)["HostConfig"]["DeviceRequests"]
    assert request["DeviceIDs"] == ["0", "1", "2"]


def test_image_labels_cannot_forge_a_gang_or_an_attempt(
    docker_kit: DockerKit, claiming: str
) -> None:
    launch = docker_kit.launch("true", image=claiming)
    docker_kit.driver.start(launch)
    assert docker_kit.events.ended(launch.uid).exit_code == 0
    labels = docker_kit.inspect(launch.uid)["Config"]["Labels"]
    ours = {name: text for name, text in labels.items() if name.startswith("cellrun.")}
    masked = ("cellrun.gang", "cellrun.gpus", "cellrun.network")
    assert [ours[name] for name in masked] == ["", "", ""]
    assert (ours["cellrun.job"], ours["cellrun.attempt"]) == ("7", launch.uid)
    networks = CellNetworks(installation=docker_kit.installation, cell="cell-1")
    rows = docker_kit.outside.containers(all=True, filters={"name": launch.uid})
    assert len(rows) == 1
    assert list(networks._note_members(rows)) == []


def volumes_of(kit: DockerKit, uid: str) -> list[str]:
    return [mount["Name"] for mount in kit.inspect(uid)["Mounts"] if mount["Type"] == "volume"]


def test_image_volume_counts_as_disk_and_is_removed_with_the_container(
    docker_kit: DockerKit, claiming: str
) -> None:
    script = "head -c 104857600 /dev/zero > /data/many; sleep 300"
    launch = docker_kit.launch(
        "sh", "-c", script, image=claiming, user="0", resources={"disk_mib": 10}
    )
    docker_kit.driver.start(launch)
    ended = docker_kit.events.ended(launch.uid)
    assert (ended.failure_kind, ended.reason) == (FailureKind.USER, DISK_LIMIT)
    assert ended.message is not None
    assert ended.message.endswith("MiB of disk, but requested 10 MiB")
    [name] = volumes_of(docker_kit, launch.uid)
    docker_kit.driver.remove(launch.uid)

    def is_gone() -> bool:
        listed = docker_kit.outside.volumes(filters={"name": name})["Volumes"] or ()
        return name not in [volume["Name"] for volume in listed]

    until(is_gone)


def test_a_volume_that_the_cell_may_not_read_is_sized_by_the_engine(
    docker_kit: DockerKit, claiming: str
) -> None:
    script = "head -c 3145728 /dev/zero > /data/some"
    launch = docker_kit.launch("sh", "-c", script, image=claiming, user="0")
    docker_kit.driver.start(launch)
    assert docker_kit.events.ended(launch.uid).exit_code == 0
    [name] = volumes_of(docker_kit, launch.uid)
    hidden = {"Type": "volume", "Name": name, "Source": "/nonexistent/_data"}
    assert volume_bytes(docker_kit.outside, [hidden, {"Type": "bind", "Source": "/"}]) == 3 << 20
