"""Programs that attack their cell from inside a container: limits hold, other tasks continue."""

import base64
import os
import shlex
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest
from docker.errors import APIError

from controlplane.contract.messages.task_options import Mount, Output
from controlplane.contract.states import FailureKind
from tests.conformance.keeper import Keeper
from tests.conformance.kit import DockerKit, Kit, until
from tests.conformance.test_artifacts import ran
from tests.conformance.test_docker_features import SERVE, address_of, greeting_of
from tests.conformance.test_files import ROOT
from tests.harness.web import Web
from workers.attempt.outcome import OUTPUTS


@pytest.fixture
def keeper(web: Web) -> Keeper:
    return Keeper(web)


@pytest.fixture
def kit(real_kit: Kit, keeper: Keeper) -> Kit:
    """A kit whose cell uses the keeper and stores up to 1 MB of each attempt."""
    keeper.serve(real_kit, max_files_bytes=1_000_000)
    return real_kit


# ----------------------------------------------------------------------------- resources


@pytest.mark.engine
def test_fork_bomb_is_bounded_and_other_tasks_continue(docker_kit: DockerKit) -> None:
    """The shell ends at the first fork that the limit refuses, so `timeout` starts it again."""
    bomb = "f() { f | f & f; }; f"
    script = f"echo ready; while :; do timeout 1 sh -c {shlex.quote(bomb)} 2> /dev/null; done"
    hostile = docker_kit.launch("sh", "-c", script, max_pids=20)
    docker_kit.driver.start(hostile)
    docker_kit.wait_until_ready(hostile.uid)
    for _ in range(3):
        other = docker_kit.launch("sh", "-c", "sleep 0.1 & wait; echo done")
        docker_kit.driver.start(other)
        assert docker_kit.events.ended(other.uid).exit_code == 0
        assert docker_kit.log(other.uid) == "done\n"
        # It ends if the limit refuses a fork of its own.
        with suppress(APIError):
            processes = docker_kit.outside.top(f"cellrun-{hostile.uid}")["Processes"]
            assert len(processes) <= 20
    docker_kit.driver.stop(hostile.uid, grace_seconds=0.0, force=True)
    docker_kit.events.ended(hostile.uid)


@pytest.mark.engine
def test_shared_memory_is_bounded(docker_kit: DockerKit) -> None:
    script = "head -c 20000000 /dev/zero > /dev/shm/all || echo full; wc -c < /dev/shm/all"
    launch = docker_kit.launch("sh", "-c", script, shm_mib=2)
    docker_kit.driver.start(launch)
    assert docker_kit.events.ended(launch.uid).exit_code == 0
    assert docker_kit.log(launch.uid) == f"full\n{2 << 20}\n"


# ----------------------------------------------------------------------------- what it reaches


@pytest.mark.engine
def test_engine_cell_and_files_of_other_tasks_are_out_of_sight(
    docker_kit: DockerKit, tmp_path: Path
) -> None:
    """Root in the container searches for the socket, the cell's folder and another task's file."""
    other = docker_kit.launch("sh", "-c", "echo x > /marker-of-another; echo ready; sleep 300")
    docker_kit.driver.start(other)
    docker_kit.wait_until_ready(other.uid)
    (docker_kit.home / "marker-of-the-cell").touch()
    script = (
        "ls -d /proc/[0-9]* | wc -l; "
        "find / -xdev \\( -name 'docker*.sock' -o -name 'containerd*.sock'"
        " -o -name 'marker-of-*' \\);"
        f" ls -d {docker_kit.home} /run/docker.sock /var/run/docker.sock;"
        " cat /proc/mounts | grep -c docker.sock; kill -0 2 || echo none;"
        " mknod /tmp/disk b 8 0 && cat /tmp/disk; mount -t proc none /mnt; ls /sys/fs/cgroup/x"
    )
    launch = docker_kit.launch("sh", "-c", script, user="0")
    docker_kit.driver.start(launch)
    docker_kit.events.ended(launch.uid)
    processes, *found = docker_kit.log(launch.uid).splitlines()
    # The shell and the two programs of the pipe: no process of the host or of the other task.
    assert int(processes) <= 4
    assert found == ["0", "none"]


# None would do damage if it succeeded.
KERNEL = {
    "mounts": "mkdir /at && mount -t tmpfs none /at",
    "mount_namespace": "unshare -m true",
    "network_namespace": "unshare -n true",
    "host_name": "hostname x",
    "interfaces": "ip link set lo down",
    "priorities": "renice -n -5 $$",
    "core_pattern": "cat /proc/sys/kernel/core_pattern > /proc/sys/kernel/core_pattern",
    "sysrq": ": > /proc/sysrq-trigger",
    "kernel_log": "dmesg | grep -q .",
    "memory": "mknod /tmp/mem c 1 1 && head -c 1 /tmp/mem",
    "kcore": "head -c 1 /proc/kcore | grep -q .",
    "cgroups": (
        "for at in $(grep -E '^cgroup2? ' /proc/mounts | cut -d ' ' -f 2);"
        " do mkdir $at/escape && exit 0; done; exit 1"
    ),
    "modules": "insmod /proc/version",
}
OF_AN_ADMINISTRATOR = {"mount_namespace", "network_namespace", "host_name"}


@pytest.mark.engine
def test_root_in_a_container_changes_nothing_of_the_kernel(docker_kit: DockerKit) -> None:
    def permitted(names: Iterable[str], **spec: object) -> set[str]:
        script = "; ".join(f"( {KERNEL[name]} ) > /dev/null 2>&1 && echo {name}" for name in names)
        launch = docker_kit.launch("sh", "-c", f"{script}; true", user="0", **spec)
        docker_kit.driver.start(launch)
        assert docker_kit.events.ended(launch.uid).exit_code == 0
        return set(docker_kit.log(launch.uid).split())

    assert permitted(KERNEL) == set()
    # The script reports what is permitted.
    names = sorted(OF_AN_ADMINISTRATOR)
    assert permitted(names, capabilities=("SYS_ADMIN",)) == OF_AN_ADMINISTRATOR


@pytest.mark.engine
def test_task_cannot_connect_to_members_of_a_gang(docker_kit: DockerKit) -> None:
    member = docker_kit.launch("sh", "-c", SERVE, network="gang")
    docker_kit.driver.start(member)
    docker_kit.events.started(member.uid)
    address = address_of(docker_kit, member)
    until(lambda: greeting_of(address) == b"hello\n")
    outsider = docker_kit.launch(
        *("sh", "-c", f"nc -w 2 {address} 7000 < /dev/null"), network="default", job_id=8
    )
    docker_kit.driver.start(outsider)
    assert docker_kit.events.ended(outsider.uid).exit_code != 0
    assert docker_kit.log(outsider.uid) == ""
    assert greeting_of(address) == b"hello\n"


# It states to a neighbour, for some seconds, that this container has the gateway's address.
FORGE = """
import socket, sys, time
gateway, victim, victim_mac = sys.argv[1:]
own_mac = bytes.fromhex(open("/sys/class/net/eth0/address").read().strip().replace(":", ""))
their_mac = bytes.fromhex(victim_mac.replace(":", ""))
addresses = own_mac + socket.inet_aton(gateway) + their_mac + socket.inet_aton(victim)
frame = their_mac + own_mac + bytes.fromhex("0806" "0001" "0800" "06" "04" "0002") + addresses
try:
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
except PermissionError:
    sys.exit("refused")
raw.bind(("eth0", 0))
for _ in range(30):
    raw.send(frame)
    time.sleep(0.1)
"""


def folders_of_python() -> tuple[Mount, ...]:
    """The host's Python, for a program that the shell of the image cannot replace."""
    targets = [*("/usr", "/lib", "/lib64"), sys.base_prefix]
    return tuple(Mount(os.path.realpath(name), name) for name in targets if Path(name).exists())


@pytest.mark.engine
@pytest.mark.parametrize(("capabilities", "expected"), [((), "kept"), (("NET_RAW",), "replaced")])
def test_task_cannot_take_the_gateways_address_from_another_task(
    docker_kit: DockerKit, capabilities: tuple[str, ...], expected: str
) -> None:
    """ARP spoofing. With NET_RAW, which only some pools allow, the same program succeeds."""
    script = "while :; do nc -w 1 $GATEWAY 9 < /dev/null; cat /proc/net/arp; sleep 0.1; done"
    script = "GATEWAY=$(ip route | grep default | cut -d ' ' -f 3); " + script
    victim = docker_kit.launch("sh", "-c", script, network="default", job_id=7)
    docker_kit.driver.start(victim)
    docker_kit.events.started(victim.uid)
    [network] = docker_kit.inspect(victim.uid)["NetworkSettings"]["Networks"].values()
    gateway = network["Gateway"]

    def neighbours() -> list[str]:
        """The addresses of the network that the victim has had for the gateway, in order."""
        lines = [line.split() for line in docker_kit.log(victim.uid).splitlines()]
        found = [line[3] for line in lines if line[:1] == [gateway] and line[2] == "0x2"]
        return list(dict.fromkeys(found))

    [true] = until(neighbours)
    attacker = docker_kit.launch(
        *(os.path.realpath(sys.executable), "-c", FORGE),
        *(gateway, network["IPAddress"], network["MacAddress"]),
        network="default",
        job_id=8,
        user="0",
        mounts=folders_of_python(),
        capabilities=capabilities,
    )
    docker_kit.driver.start(attacker)
    ended = docker_kit.events.ended(attacker.uid)
    if expected == "kept":
        assert (ended.exit_code, docker_kit.log(attacker.uid, "stderr")) == (1, "refused\n")
        assert neighbours() == [true]
    else:
        assert ended.exit_code == 0, docker_kit.log(attacker.uid, "stderr")
        until(lambda: len(neighbours()) > 1)


# ----------------------------------------------------------------------------- its files

# A file of this size, without blocks on the disk, costs nothing unless the cell reads all of it.
SPARSE = "dd if=/dev/zero of={} bs=1 count=1 seek=4294967296 2>/dev/null"


def test_sparse_output_over_the_limit_is_refused_unread(kit: Kit, keeper: Keeper) -> None:
    text = SPARSE.format(f"{ROOT}/out/model")
    for output in (Output("/out/model", "model"), Output("/out/*", "model"), Output("/out", "o")):
        ended = ran(kit, text, output)
        assert (ended.failure_kind, ended.reason) == (FailureKind.USER, OUTPUTS), ended
    assert keeper.puts() == []


def test_sparse_result_is_cut(kit: Kit) -> None:
    ended = ran(kit, SPARSE.format(f"{ROOT}/out/result"))
    assert (ended.exit_code, ended.result_truncated) == (0, True)
    assert ended.result is not None
    assert len(ended.result) <= 10_240


ODD_NAMES = (
    b"line\nbreak",
    b"\x1b]52;c;eA==\x07",
    b"\xff\xfe",
    b"a\\..\\..\\b",
    b"..a",
    b"%2e%2e%2fetc",
    b"-rf",
    b"?query#fragment",
    b"x" * 255,
)


@pytest.mark.parametrize("name", ODD_NAMES, ids=repr)
def test_odd_name_of_an_output_stays_below_its_own_name_or_is_refused(
    kit: Kit, keeper: Keeper, name: bytes
) -> None:
    coded = base64.b64encode(name).decode()
    text = f'cd {ROOT}/out; echo x > ./"$(echo {shlex.quote(coded)} | base64 -d)"'
    ended = ran(kit, text, Output("/out/*", "all"))
    if ended.exit_code != 0 or ended.failure_kind is not None:
        assert (ended.failure_kind, ended.reason) == (FailureKind.USER, OUTPUTS), ended
        assert keeper.kept == {}
    else:
        [stored] = keeper.kept[ended.uid]
        assert stored.startswith("all/")
        assert ".." not in stored.split("/")
    # The cell continues.
    assert ran(kit, f"echo x > {ROOT}/out/a", Output("/out/a", "a")).failure_kind is None


@pytest.mark.parametrize(("length", "depth"), [(200, 60), (1, 1500)])
def test_deeply_nested_folders_are_refused_and_removed(
    kit: Kit, keeper: Keeper, length: int, depth: int
) -> None:
    """A path of more than PATH_MAX, and one of more levels than Python has frames."""
    name = "d" * length
    text = (
        f"cd {ROOT}/out; i=0; while [ $i -lt {depth} ];"
        f" do mkdir {name}; cd {name}; i=$((i+1)); done; echo x > a"
    )
    for output in (Output("/out/**/a", "all"), Output("/out", "all")):
        ended = ran(kit, text, output)
        assert (ended.failure_kind, ended.reason) == (FailureKind.USER, OUTPUTS), ended
        kit.driver.remove(ended.uid)
        until(lambda uid=ended.uid: not (kit.home / "work" / uid).exists())  # type: ignore[misc]
    assert keeper.puts() == []
    assert ran(kit, f"echo x > {ROOT}/out/a", Output("/out/a", "a")).failure_kind is None
