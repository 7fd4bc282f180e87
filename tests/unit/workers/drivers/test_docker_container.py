"""Requests to engines that are not available here: bodies for Podman, groups, digests."""

from pathlib import Path
from typing import Any

import pytest

from controlplane.contract.messages.orders import GroupSpec, RunAttempt
from controlplane.contract.messages.task_options import USUAL_CAPABILITIES, Mount, Tmpfs
from workers.attempt.events import Launch
from workers.attempt.runtime import (
    ContainerStatus,
    ContainerView,
    EngineError,
    PlacedFile,
    ResourceUsage,
)
from workers.drivers.docker.cgroups import Cgroups, CgroupSamples
from workers.drivers.docker.container import (
    container_body,
    mounts_for,
    view_of,
    without_host_paths,
)
from workers.drivers.docker.images import digest_of
from workers.drivers.docker.networks import network_parts
from workers.drivers.docker.podman import adapt, is_name_taken, is_podman

UID = "11111111-1111-4111-8111-111111111111"


def launch(**spec: Any) -> Launch:
    group = GroupSpec(
        id=1, job_id=7, job_name="suite", group="main", replicas=2, image="busybox", **spec
    )
    return Launch(RunAttempt(UID, 1, 11, 1, 1, 0.0), group, {"CELLRUN_CELL": "cell-1"})


def body_of(launch: Launch, **more: Any) -> dict[str, Any]:
    return container_body(launch, labels={}, mounts=(), log_driver="", **more)


# ----------------------------------------------------------------------------- bodies


def test_plain_task_drops_capabilities_and_forbids_new_privileges() -> None:
    host = body_of(launch())["HostConfig"]
    assert (host["CapDrop"], host["CapAdd"]) == (["ALL"], list(USUAL_CAPABILITIES))
    assert host["SecurityOpt"] == ["no-new-privileges"]
    absent = {"Privileged", "Mounts", "Tmpfs", "CgroupParent", "NetworkMode", "DeviceRequests"}
    assert absent.isdisjoint(host)


def test_requested_mounts_tmpfs_and_privileges_are_in_the_body() -> None:
    spec = launch(
        mounts=(Mount("/srv/a", "/in"), Mount("/srv/b", "/out", read_only=False)),
        tmpfs=(Tmpfs("/fast", 8),),
        capabilities=("CAP_NET_RAW", "CHOWN", "SYS_NICE"),
    )
    host = body_of(spec, cgroup_parent="/docker/x")["HostConfig"]
    assert host["CapAdd"] == [*USUAL_CAPABILITIES, "NET_RAW", "SYS_NICE"]
    assert [(m["Source"], m["Target"], m["ReadOnly"]) for m in host["Mounts"]] == [
        ("/srv/a", "/in", True),
        ("/srv/b", "/out", False),
    ]
    assert host["Tmpfs"] == {"/fast": "size=8m"}
    assert host["CgroupParent"] == "/docker/x"
    privileged = body_of(launch(privileged=True))["HostConfig"]
    assert privileged["Privileged"] is True
    assert {"CapDrop", "CapAdd", "SecurityOpt"}.isdisjoint(privileged)


def test_gang_member_joins_its_network_under_its_name() -> None:
    body = body_of(launch(network="gang"), network=network_parts("abc", "main-1"))
    assert body["HostConfig"]["NetworkMode"] == "abc"
    assert body["NetworkingConfig"]["EndpointsConfig"] == {"abc": {"Aliases": ["main-1"]}}
    assert (body["Hostname"], body["NetworkDisabled"]) == ("main-1", False)
    assert "Hostname" not in network_parts("abc", f"{'x' * 63}-1")


def test_bound_files_and_files_of_read_only_containers_are_mounted(
    tmp_path: Path,
) -> None:
    placed = [
        PlacedFile("/in/text", tmp_path / "text"),
        PlacedFile("/data/out", writable=True),
        PlacedFile("/database", writable=True),
        PlacedFile("/run/key", tmp_path / "key", bound=True),
    ]
    ours = without_host_paths(launch(mounts=(Mount("/srv", "/data/"),)).spec, placed)
    assert [item.path for item in ours] == ["/in/text", "/database", "/run/key"]
    by_read_only = {
        read_only: [m["Target"] for m in mounts_for(ours, tmp_path / "made", read_only=read_only)]
        for read_only in (False, True)
    }
    assert by_read_only == {False: ["/run/key"], True: ["/in/text", "/database", "/run/key"]}


# ----------------------------------------------------------------------------- Podman


def test_podman_is_detected_by_its_version_components() -> None:
    assert is_podman({"Components": [{"Name": "Podman Engine"}, {"Name": "Conmon"}]})
    assert not is_podman({"Components": [{"Name": "Engine"}, {"Name": "containerd"}]})
    assert not is_podman({"Components": None})


def test_podman_request_uses_network_none_and_cdi_gpus(tmp_path: Path) -> None:
    spec = launch(network="none", mounts=(Mount(str(tmp_path), "/in"),))
    body = body_of(spec, gpus=(0, 2))
    adapted = adapt(body)
    assert "NetworkDisabled" not in adapted
    assert adapted["HostConfig"]["NetworkMode"] == "none"
    assert adapted["HostConfig"]["DeviceRequests"] == [
        {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=0", "nvidia.com/gpu=2"]}
    ]
    assert adapted["HostConfig"]["Mounts"] == body["HostConfig"]["Mounts"]
    assert body["NetworkDisabled"], "the body itself is as it was"
    assert "NetworkMode" not in adapt(body_of(launch()))["HostConfig"]
    member = adapt(body_of(launch(network="gang"), network=network_parts("abc", "main-1")))
    assert member["HostConfig"]["NetworkMode"] == "abc"


def test_podman_mount_of_a_missing_host_folder_is_refused(tmp_path: Path) -> None:
    body = body_of(launch(mounts=(Mount(str(tmp_path / "none"), "/in"),)))
    with pytest.raises(EngineError, match="bind source path does not exist") as refused:
        adapt(body)
    assert refused.value.status == 400


def test_name_conflict_is_recognised_for_docker_and_podman() -> None:
    assert is_name_taken(EngineError("Conflict.", 409))
    words = 'container create: creating container storage: the container name "x" is already in use'
    assert is_name_taken(EngineError(words, 500))
    assert not is_name_taken(EngineError("no space left on device", 500))


def test_podman_container_states_are_mapped() -> None:
    state = {"StartedAt": "0001-01-01T00:00:00Z", "Running": False}
    for status in ("created", "configured", "initialized"):
        assert (
            view_of({"Id": "x", "State": {**state, "Status": status}}).status
            is ContainerStatus.CREATED
        )
    stopping = {**state, "StartedAt": "2026-01-01T00:00:00.5+00:00", "Status": "stopping"}
    assert view_of({"Id": "x", "State": stopping}).status is ContainerStatus.RUNNING


# ----------------------------------------------------------------------------- images


def test_image_digest_is_of_the_named_registry() -> None:
    known = ["busybox@sha256:1", "127.0.0.1:5000/a/b@sha256:2"]
    body = {"Id": "sha256:own", "RepoDigests": known}
    assert digest_of(body, "127.0.0.1:5000/a/b:1") == "sha256:2"
    assert digest_of(body, "busybox") == "sha256:1"
    assert digest_of(body, "other:1") == "sha256:1"
    assert digest_of({"Id": "sha256:own", "RepoDigests": []}, "busybox") == "sha256:own"


# ----------------------------------------------------------------------------- use


def groups(root: Path, *, info: str = "cgroupfs") -> Cgroups:
    made = Cgroups(installation="i", cell="c", root=root)
    made.settle({"CgroupDriver": info})
    return made


def test_cgroup_v2_usage_is_read_and_groups_are_removed(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    before = groups(tmp_path)
    assert before.parent(UID) == "", "the engine has made no container yet"
    (tmp_path / "docker").mkdir()
    parent = before.parent(UID)
    assert parent.startswith("/docker/cellrun-")
    folder = tmp_path / parent.lstrip("/")
    folder.mkdir()
    before.sample(UID)
    (folder / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    assert before.use(UID) == ResourceUsage(1.5)
    (folder / "memory.peak").write_text("4096\n")
    assert before.use(UID) == ResourceUsage(1.5, memory_peak_bytes=4096)
    assert (before.list(), before.has(UID)) == ({UID}, True)
    other = Cgroups(installation="i", cell="d", root=tmp_path)
    other.settle({"CgroupDriver": "cgroupfs"})
    assert other.list() == set()
    for path in folder.iterdir():
        path.unlink()
    before.remove(UID)
    assert (before.list(), before.has(UID), before.use(UID)) == (set(), False, None)


def test_cgroups_of_removed_cells_are_swept_after_a_day(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    folder = tmp_path / "docker"
    names = ["cellrun-gone-1", "cellrun-runs-1", "somebody-s"]
    for name in names:
        (folder / name).mkdir(parents=True)
    (folder / "cellrun-runs-1" / "container").mkdir()
    ours = groups(tmp_path)
    (folder / ours.parent(UID).rpartition("/")[2]).mkdir()
    now = folder.stat().st_mtime
    ours.sweep(now + 3_600)
    assert len(list(folder.iterdir())) == 4
    ours.sweep(now + 100_000)
    assert {path.name for path in folder.iterdir()} == {
        "cellrun-runs-1",
        "somebody-s",
        ours.parent(UID).rpartition("/")[2],
    }


def test_no_cgroup_is_created_where_the_engine_manages_them_itself(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    (tmp_path / "docker").mkdir()
    assert groups(tmp_path, info="systemd").parent(UID) == ""
    elsewhere = groups(tmp_path)
    assert elsewhere.parent(UID)
    elsewhere.sample(UID)  # its container was started, and nothing is seen of it
    assert (elsewhere.parent(UID), elsewhere.use(UID)) == ("", None)


def test_running_container_usage_is_read_from_its_own_cgroup(tmp_path: Path) -> None:
    (tmp_path / "proc" / "42").mkdir(parents=True)
    listed = tmp_path / "proc" / "42" / "cgroup"
    folder = tmp_path / "sys" / "system.slice" / "docker-abc.scope"
    folder.mkdir(parents=True)
    (folder / "cpu.stat").write_text("usage_usec 2000000\n")
    (folder / "memory.peak").write_text("8192\n")
    samples = CgroupSamples(tmp_path / "sys", tmp_path / "proc")
    listed.write_text("0::/system.slice/docker-other.scope\n")
    view = ContainerView(ContainerStatus.RUNNING, "abc", pid=42)
    samples.sample(UID, view)
    assert samples.last(UID) is None, "it is another container's process"
    listed.write_text("0::/system.slice/docker-abc.scope\n")
    samples.sample(UID, view)
    samples.sample(UID, None)
    assert samples.last(UID) == ResourceUsage(2.0, memory_peak_bytes=8192)
    assert samples.pause(UID) > samples.pause("another")
    samples.forget(UID)
    assert samples.last(UID) is None
