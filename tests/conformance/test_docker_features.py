"""Options of a task's container, each compared with what the container shows."""

import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError

from controlplane.contract.messages.reports import NOT_HERE
from controlplane.contract.messages.task_options import Mount, Tmpfs
from controlplane.contract.states import FailureKind
from tests.conformance.kit import IMAGE, DockerKit, until
from workers.attempt.capture import Capture
from workers.attempt.events import Launch
from workers.attempt.runtime import ContainerStatus, CreateResult, PlacedFile
from workers.drivers.docker.driver import DockerEngine
from workers.drivers.docker.networks import CellNetworks

pytestmark = pytest.mark.engine


@pytest.fixture
def engine(docker_kit: DockerKit) -> Iterator[DockerEngine]:
    """The engine itself, for calls that no step makes; the kit removes what it leaves."""
    config = docker_kit.config()
    with closing(
        DockerEngine(installation=config.installation, cell=config.name, home=config.home)
    ) as engine:
        yield engine


def output(engine: DockerEngine, launch: Launch, placed: Sequence[PlacedFile], folder: Path) -> str:
    """What the command of `launch` printed."""
    (folder / "work" / launch.uid).mkdir(parents=True)
    engine.create(launch, placed)
    engine.put(launch, placed)
    engine.start(launch.uid)
    until(lambda: (view := engine.view(launch.uid)) and view.status is ContainerStatus.ENDED)
    engine.copy_logs(launch.uid, Capture(folder / launch.uid, 10_000), follow=False)
    return (folder / launch.uid / "stdout").read_text()


# ----------------------------------------------------------------------------- files of the host


@pytest.mark.parametrize("read_only", [False, True])
def test_bound_files_are_mounted_and_writable_only_if_allowed(
    docker_kit: DockerKit, engine: DockerEngine, tmp_path: Path, read_only: bool
) -> None:
    (tmp_path / "key").write_text("the key\n")
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours").chmod(0o777)
    (tmp_path / "copied").write_text("copied\n")
    placed = [
        PlacedFile("/run/secrets/key", tmp_path / "key", bound=True),
        PlacedFile("/gang", tmp_path / "ours", writable=True, bound=True),
        PlacedFile("/in/copied", tmp_path / "copied"),
    ]
    script = "cat /run/secrets/key /in/copied; echo x >> /run/secrets/key; echo seen > /gang/from"
    launch = docker_kit.launch("sh", "-c", script, read_only=read_only)
    assert output(engine, launch, placed, docker_kit.home) == "the key\ncopied\n"
    assert (tmp_path / "key").read_text() == "the key\n"
    assert (tmp_path / "ours" / "from").read_text() == "seen\n"
    mounts = docker_kit.inspect(launch.uid)["HostConfig"]["Mounts"]
    assert len(mounts) == (3 if read_only else 2)


# ----------------------------------------------------------------------------- networks


def networks_of(kit: DockerKit) -> list[str]:
    labels = [f"cellrun.installation={kit.installation}"]
    return [one["Name"] for one in kit.outside.networks(filters={"label": labels})]


def test_gang_members_resolve_each_other_by_name_in_a_private_network(
    docker_kit: DockerKit,
) -> None:
    greeting = "hostname; echo hello | nc -l -p 7000"
    first = docker_kit.launch("sh", "-c", greeting, network="gang", is_gang=False)
    script = (
        "until a=$(nslookup main-0 127.0.0.11 | tail -n +3 | grep -m 1 -o '[0-9]*[.][0-9.]*$');"
        " do sleep 0.05; done; until nc $a 7000 | grep hello; do sleep 0.05; done"
    )
    second = docker_kit.launch("sh", "-c", script, network="gang")
    second = replace(second, run=replace(second.run, task_index=1))
    outsider = docker_kit.launch("nslookup", "main-0", "127.0.0.11", network="default")
    for launch in (first, second, outsider):
        docker_kit.driver.start(launch)
    assert docker_kit.events.ended(second.uid).exit_code == 0
    assert docker_kit.log(second.uid) == "hello\n"
    assert docker_kit.events.ended(first.uid).exit_code == 0
    assert docker_kit.log(first.uid) == "main-0\n"
    assert docker_kit.events.ended(outsider.uid).exit_code != 0
    docker_kit.driver.remove(outsider.uid)
    gang = f"cellrun-{docker_kit.installation}-cell-1-gang-7"
    until(lambda: networks_of(docker_kit) == [gang])
    # It goes with the last one, also when another process of the cell removes that.
    docker_kit.driver.remove(first.uid)
    until(lambda: first.uid not in {found.uid for found in docker_kit.driver.find()})
    assert len(networks_of(docker_kit)) == 1
    docker_kit.begin_again()
    assert len(list(docker_kit.driver.find())) == 1
    docker_kit.driver.remove(second.uid)
    until(lambda: networks_of(docker_kit) == [])


def address_of(kit: DockerKit, launch: Launch) -> str:
    """The address of a running container in its only network."""
    [network] = kit.inspect(launch.uid)["NetworkSettings"]["Networks"].values()
    return str(network["IPAddress"])


def greeting_of(address: str) -> bytes:
    try:
        with socket.create_connection((address, 7000), timeout=2) as line:
            return line.recv(16)
    except OSError:
        return b""


SERVE = "while :; do echo hello | nc -l -p 7000; done"


def test_task_cannot_connect_to_a_task_of_another_job_on_its_cell(docker_kit: DockerKit) -> None:
    server = docker_kit.launch("sh", "-c", SERVE, network="default", job_id=7)
    docker_kit.driver.start(server)
    docker_kit.events.started(server.uid)
    address = address_of(docker_kit, server)
    # It serves: the host, which is no task, can connect.
    until(lambda: greeting_of(address) == b"hello\n")
    script = (
        f"nc -w 2 {address} 7000 < /dev/null; ping -c 1 -W 2 {address} > /dev/null && echo echoed"
    )
    for job_id in (7, 8):
        client = docker_kit.launch(
            *("sh", "-c", script), network="default", job_id=job_id, number=job_id
        )
        docker_kit.driver.start(client)
        assert docker_kit.events.ended(client.uid).exit_code != 0
        assert docker_kit.log(client.uid) == ""
    assert greeting_of(address) == b"hello\n"


def test_task_reaches_its_host_and_published_ports_of_other_tasks(docker_kit: DockerKit) -> None:
    config = docker_kit.config()
    # Other hosts reach its ports, so they are published at all addresses of this one.
    with closing(
        DockerEngine(
            installation=config.installation,
            cell=config.name,
            home=config.home,
            address=lambda: "cell.example.com",
        )
    ) as engine:
        script = SERVE.replace("7000", "$CELLRUN_PORT_HTTP")
        server = docker_kit.launch("sh", "-c", script, network="default", ports=("http",))
        engine.create(server, [])
        engine.start(server.uid)
        shown = docker_kit.inspect(server.uid)["NetworkSettings"]
        [network], [ports] = shown["Networks"].values(), shown["Ports"].values()
        address = f"{network['Gateway']} {ports[0]['HostPort']}"
        script = f"until nc -w 2 {address} < /dev/null | grep hello; do :; done"
        client = docker_kit.launch("sh", "-c", script, network="default")
        docker_kit.driver.start(client)
        assert docker_kit.events.ended(client.uid).exit_code == 0


def test_network_of_tasks_is_shared_and_removed_with_the_last(docker_kit: DockerKit) -> None:
    launches = [docker_kit.launch("true", network="default", job_id=n) for n in (7, 8, 9)]
    for launch in launches:
        docker_kit.driver.start(launch)
    for launch in launches:
        assert docker_kit.events.ended(launch.uid).exit_code == 0
    expected = f"cellrun-{docker_kit.installation}-cell-1-tasks"
    assert networks_of(docker_kit) == [expected]
    # Firewalls of operators match the name of the interface.
    options = docker_kit.outside.inspect_network(expected)["Options"]
    assert re.fullmatch("cr-[0-9a-f]{12}", options["com.docker.network.bridge.name"])
    for launch in launches[:2]:
        docker_kit.driver.remove(launch.uid)
    until(lambda: {found.uid for found in docker_kit.driver.find()} == {launches[2].uid})
    assert networks_of(docker_kit) == [expected]
    # Also by another process of the cell.
    docker_kit.begin_again()
    assert len(list(docker_kit.driver.find())) == 1
    docker_kit.driver.remove(launches[2].uid)
    until(lambda: networks_of(docker_kit) == [])


def test_removal_of_the_network_waits_for_containers_that_are_being_created(
    docker_kit: DockerKit,
) -> None:
    launch = docker_kit.launch("true", network="default")
    networks = CellNetworks(installation=docker_kit.installation, cell="cell-1")
    with networks.joined(docker_kit.outside, launch):
        networks.sweep(docker_kit.outside)
        assert len(networks_of(docker_kit)) == 1
    networks.sweep(docker_kit.outside)
    assert networks_of(docker_kit) == []


def test_engine_that_cannot_separate_containers_uses_its_own_network(
    docker_kit: DockerKit,
) -> None:
    """Podman refuses the option."""
    launch = docker_kit.launch("true", network="default")
    networks = CellNetworks(installation=docker_kit.installation, cell="cell-1")
    with networks.joined(docker_kit.outside, launch, can_separate=False) as parts:
        assert parts is None
    assert networks_of(docker_kit) == []


def test_gang_network_is_created_when_engine_address_pools_are_exhausted(
    docker_kit: DockerKit,
) -> None:
    mine = []
    try:
        for number in range(200):  # with pools of the usual sizes, some thirty succeed
            try:
                made = docker_kit.outside.create_network(f"{docker_kit.installation}-{number}")
            except APIError:
                break
            mine.append(made["Id"])
        launch = docker_kit.launch("ip", "-4", "-o", "address", network="gang")
        docker_kit.driver.start(launch)
        assert docker_kit.events.ended(launch.uid).exit_code == 0
        assert "inet 10.2" in docker_kit.log(launch.uid)
    finally:
        for network in mine:
            docker_kit.outside.remove_network(network)
    docker_kit.driver.remove(launch.uid)
    until(lambda: networks_of(docker_kit) == [])


# ---------------------------------------------------------------------------- options


def lines_of(kit: DockerKit, script: str, **spec: Any) -> list[str]:
    """What a shell script printed that succeeded."""
    launch = kit.launch("sh", "-c", script, **spec)
    kit.driver.start(launch)
    ended = kit.events.ended(launch.uid)
    assert ended.exit_code == 0, (ended.message, kit.log(launch.uid, "stderr"))
    return kit.log(launch.uid).splitlines()


def test_mounts_and_tmpfs_match_the_spec(docker_kit: DockerKit, tmp_path: Path) -> None:
    for name in ("read", "written"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o755)
    (tmp_path / "read" / "text").write_text("of the host\n")
    script = (
        "cat /data/text; touch /data/new 2>/dev/null || echo refused;"
        " echo done > /out/result; touch /scratch/x; "
        "grep -E ' /(data|out|scratch|dev/shm) ' /proc/mounts | cut -d ' ' -f 2-4"
    )
    for read_only in (False, True):
        lines = lines_of(
            docker_kit,
            script,
            user="0",
            mounts=(
                Mount(str(tmp_path / "read"), "/data"),
                Mount(str(tmp_path / "written"), "/out", read_only=False),
            ),
            tmpfs=(Tmpfs("/scratch", 3),),
            shm_mib=2,
            result_file="/out/result",
            read_only=read_only,
        )
        assert lines[:2] == ["of the host", "refused"]
        mounted = {line.split()[0]: line.split()[1:] for line in lines[2:]}
        assert set(mounted) == {"/data", "/out", "/scratch", "/dev/shm"}
        assert (mounted["/data"][1].split(",")[0], mounted["/out"][1].split(",")[0]) == ("ro", "rw")
        assert mounted["/scratch"][0] == "tmpfs"
        assert {"size=3072k", "nosuid", "nodev", "noexec"} <= set(mounted["/scratch"][1].split(","))
        assert "size=2048k" in mounted["/dev/shm"][1].split(",")
        assert (tmp_path / "written" / "result").read_text() == "done\n"
        # A folder of the host is not made writable for all, as the task's own would be.
        assert (tmp_path / "written").stat().st_mode & 0o777 == 0o755


def test_symlinked_or_missing_mount_source_is_a_user_failure(
    docker_kit: DockerKit, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    words = {"link": f"leads through a symbolic link to {tmp_path}/real", "none": "does not exist"}
    for name, expected in words.items():
        launch = docker_kit.launch("true", mounts=(Mount(str(tmp_path / name), "/in"),))
        docker_kit.driver.start(launch)
        ended = docker_kit.events.ended(launch.uid)
        assert (ended.failure_kind, ended.reason) == (FailureKind.USER, NOT_HERE)
        assert expected in str(ended.message)


def test_mount_source_swapped_for_a_symlink_is_not_followed(
    docker_kit: DockerKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "mounted").mkdir()
    create = DockerEngine.create

    def swap(engine: DockerEngine, launch: Launch, placed: Sequence[PlacedFile]) -> CreateResult:
        created = create(engine, launch, placed)
        (tmp_path / "mounted").rmdir()
        (tmp_path / "mounted").symlink_to("outside")
        return created

    monkeypatch.setattr(DockerEngine, "create", swap)
    mount = Mount(str(tmp_path / "mounted"), "/in", read_only=False)
    launch = docker_kit.launch("touch", "/in/x", mounts=(mount,), user="0")
    docker_kit.driver.start(launch)
    ended = docker_kit.events.ended(launch.uid)
    assert (ended.failure_kind, ended.reason) == (FailureKind.USER, NOT_HERE), ended
    assert f"symbolic link to {tmp_path}/outside" in str(ended.message)
    assert not list((tmp_path / "outside").iterdir())


def test_capabilities_and_privileges_match_the_spec(docker_kit: DockerKit) -> None:
    script = "grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status | cut -f 2"
    few = lines_of(docker_kit, script, user="0")
    more = lines_of(docker_kit, script, user="0", capabilities=("CAP_NET_RAW", "SYS_NICE", "KILL"))
    other = lines_of(docker_kit, script, user="123:45", capabilities=("NET_RAW",))
    # Not as root: where the engine itself lacks a capability, it can start no privileged root.
    everything = lines_of(docker_kit, script, privileged=True)
    [few_bits, more_bits] = [int(lines[0], 16) for lines in (few, more)]
    assert few_bits.bit_count() == 9
    assert not few_bits & 1 << 13, "raw sockets"
    assert more_bits & ~few_bits == 1 << 13 | 1 << 23  # NET_RAW, SYS_NICE
    # A program that is not root has what its file gives it: nothing.
    assert (int(other[0], 16), int(other[1], 16).bit_count()) == (0, 10)
    assert int(everything[1], 16).bit_count() > 30
    assert [lines[2:] for lines in (few, more, other, everything)] == [
        ["1", "2"],
        ["1", "2"],
        ["1", "2"],
        ["0", "0"],
    ]


# ----------------------------------------------------------------------------- use


def groups_of(uid: str) -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob(f"*/docker/*{uid}"))


def is_exact(kit: DockerKit) -> bool:
    """Return whether the engine groups its containers; otherwise they are sampled."""
    return bool(kit.outside.info()["CgroupDriver"] == "cgroupfs")


def test_usage_of_a_short_task_is_reported_exactly_or_omitted(
    docker_kit: DockerKit,
) -> None:
    lines_of(docker_kit, "true")  # an engine makes its group with its first container
    launch = docker_kit.launch("true", resources={"memory_mib": 32})
    docker_kit.driver.start(launch)
    usage = docker_kit.events.ended(launch.uid).usage
    assert usage is not None
    if is_exact(docker_kit):
        assert 0 < usage["cpu_seconds"] < 5
        assert 0.1 < usage["memory_peak_mib"] <= 32
        assert groups_of(launch.uid)
    else:
        assert {"cpu_seconds", "memory_peak_mib"}.isdisjoint(usage)
    docker_kit.driver.remove(launch.uid)
    until(lambda: not groups_of(launch.uid))


def test_usage_is_sampled_while_running_without_a_dedicated_cgroup(
    docker_kit: DockerKit, engine: DockerEngine
) -> None:
    engine.find_image(IMAGE)  # it has connected
    engine._cgroups.settle({"CgroupDriver": "systemd"})
    launch = docker_kit.launch("sh", "-c", "x=$(head -c 9000000 /dev/zero | tr '\\0' a); sleep 1")
    engine.create(launch, ())
    engine.start(launch.uid)
    until(lambda: engine.wait(launch.uid, 0.5))
    view = engine.view(launch.uid)
    assert view is not None
    assert view.use is not None
    assert view.use.cpu_seconds > 0
    assert view.use.memory_peak_bytes is None or view.use.memory_peak_bytes > 9_000_000
    assert not groups_of(launch.uid)


def test_cgroups_of_containers_removed_from_outside_are_swept(
    docker_kit: DockerKit,
) -> None:
    launch = docker_kit.launch("sleep", "300")
    docker_kit.driver.start(launch)
    docker_kit.events.started(launch.uid)
    docker_kit.remove_outside(launch.uid)
    docker_kit.events.ended(launch.uid)
    list(docker_kit.driver.find())
    assert groups_of(launch.uid) == []


def test_image_digest_is_reported(docker_kit: DockerKit) -> None:
    launch = docker_kit.launch("true")
    docker_kit.driver.start(launch)
    usage = docker_kit.events.ended(launch.uid).usage
    assert usage is not None
    assert usage["image_digest"] == docker_kit.outside.inspect_image(IMAGE)["Id"]
    assert "pulled_bytes" not in usage


# ----------------------------------------------------------------------------- limits, from inside


def test_process_limit_is_enforced(docker_kit: DockerKit) -> None:
    script = "i=0; while [ $i -lt 40 ]; do sleep 1 & i=$((i+1)); done; wait"
    launch = docker_kit.launch("sh", "-c", script, max_pids=20)
    docker_kit.driver.start(launch)
    assert docker_kit.events.ended(launch.uid).exit_code != 0
    assert "fork" in docker_kit.log(launch.uid, "stderr")


def test_workdir_user_env_and_mounts_inside_match_the_spec(docker_kit: DockerKit) -> None:
    launch = docker_kit.launch(
        "pwd; id -u; echo $A $CELLRUN_ATTEMPT_UID; cat /proc/mounts",
        entrypoint=("sh", "-c"),
        workdir="/etc",
        user="123:45",
        env={"A": "b"},
        read_only=True,
        network="none",
        result_file="/out/result",
    )
    docker_kit.driver.start(launch)
    assert docker_kit.events.ended(launch.uid).exit_code == 0
    where, user, env, *mounts = docker_kit.log(launch.uid).splitlines()
    assert (where, user, env) == ("/etc", "123", f"b {launch.uid}")
    options = {words[1]: words[3].split(",") for words in map(str.split, mounts)}
    assert "ro" in options["/"]
    assert "rw" in options["/out"]
    assert "ro" in options["/proc/sys"]  # what is the whole host's cannot be set
