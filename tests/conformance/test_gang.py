"""Members of a gang on one cell: what each finds, and that changes of the others reach it."""

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from controlplane.contract.messages.gang import Gang, GangGroup, GangKey, GangMember
from controlplane.contract.states import TaskState as S
from controlplane.contract.wire import keys
from controlplane.domain.cells.sealing import NONCE_BYTES, seal
from tests.conformance.kit import SECONDS, DockerKit, Kit, ProcessKit, until
from tests.harness.web import Answer, Request, Web
from workers.attempt.events import Launch
from workers.attempt.gangs import gang
from workers.secret_folder import is_in_memory

KEY = GangKey("-----BEGIN OPENSSH PRIVATE KEY-----\nnot one\n", "ssh-ed25519 AAAA gang")


class GangWeb(Web):
    """Answers with the gang that its test sets; refuses the attempts in `refused`."""

    def __init__(self) -> None:
        super().__init__()
        self.route = self._respond
        self.gang = Gang(())
        self.refused: set[str] = set()
        self.is_away = threading.Event()

    def _respond(self, request: Request) -> Answer:
        *_, uid, what = request.path.split("/")
        if request.method == "PUT":  # output
            offset = int(request.path.rpartition("offset=")[2])
            return Answer(200, json.dumps({"size": offset + len(request.body)}).encode())
        if self.is_away.is_set():
            return Answer(503)
        if uid in self.refused:
            return Answer(404)
        document = replace(self.gang, key=KEY).body() if what == "briefing" else self.gang.body()
        body = {"gang": document} if what == "briefing" else document
        key = keys.mac_key(b"k" * 32, keys.SEAL)
        mac = request.headers["X-Cellrun-Mac"]
        about = keys.about_answer(cell="cell-1", attempt=uid, endpoint=what, mac=mac)
        nonce = os.urandom(NONCE_BYTES)
        return Answer(200, seal(key, json.dumps(body).encode(), about=about, nonce=nonce))

    def count_requests(self, uid: str = "") -> int:
        """Return the number of requests for the gang, by that attempt."""
        return sum(request.path.endswith(f"{uid}/gang") for request in self.requests)


@pytest.fixture
def web() -> Iterator[GangWeb]:
    with GangWeb() as web:
        yield web


def begin(kit: Kit, web: GangWeb) -> None:
    """The cell is one that has a control plane."""
    plain = kit.config

    def config(**changes: Any) -> Any:
        return plain(control_url=web.url, **changes)

    kit.config = config  # type: ignore[method-assign]
    kit.begin_again()


def gang_of(kit: Kit, size: int, **shared: Any) -> list[GangMember]:
    kind = "process" if isinstance(kit, ProcessKit) else "container"
    group = GangGroup(
        "main", **{"task_type": kind, "network": "gang", "ports": ("http",), **shared}
    )
    return [GangMember(n, group, n, S.BUILDING, 1, "cell-1") for n in range(size)]


def launch(kit: Kit, script: str, index: int = 0, **spec: Any) -> Launch:
    kind = "process" if isinstance(kit, ProcessKit) else "container"
    options = {"network": "gang", "ports": ("http",), "is_gang": True, "task_type": kind, **spec}
    made = kit.launch("sh", "-c", script, **options)
    env = {**made.env, "CELLRUN_CELL": "cell-1"}
    return replace(made, run=replace(made.run, task_index=index), env=env)


def running(member: GangMember, address: str = "", **more: Any) -> GangMember:
    addresses = {"http": address} if address else {}
    return replace(member, state=S.RUNNING, addresses=addresses, **more)


SHOW_GANG = """
cd $CELLRUN_ROOT/run/cellrun
echo $CELLRUN_GANG_RANK of $CELLRUN_GANG_SIZE: $CELLRUN_GANG_HOSTS
cat ssh/id_ed25519 ssh/authorized_keys
grep IdentityFile ssh/config | { read -r _ path; cat $path | head -1; }
until [ -e gang/ready ]; do sleep 0.02; done
cat gang/peers
until grep -q '"attempt": 2' gang/peers.json; do sleep 0.02; done
cat gang/peers
"""


def test_member_sees_its_rank_the_key_and_changing_peer_addresses(
    real_kit: Kit, web: GangWeb
) -> None:
    begin(real_kit, web)
    me, other, late = gang_of(real_kit, 3)
    web.gang = Gang((me, other, late))
    made = launch(real_kit, SHOW_GANG)
    real_kit.driver.start(made)
    until(lambda: "0 of 3: main-0,main-1,main-2" in real_kit.log(made.uid))
    far = running(other, "10.0.0.2:4711", cell="cell-2")
    web.gang = Gang((running(me), far, late), is_ready=True)
    until(lambda: "main-1 RUNNING 10.0.0.2 http=4711" in real_kit.log(made.uid))
    moved = replace(far, number=2, addresses={"http": "10.0.0.3:4712"})
    web.gang = Gang((running(me), moved, late), is_ready=True)
    assert real_kit.events.ended(made.uid).exit_code == 0
    lines = real_kit.log(made.uid).splitlines()
    assert lines[1:5] == [
        "-----BEGIN OPENSSH PRIVATE KEY-----",
        "not one",
        "ssh-ed25519 AAAA gang",
        "-----BEGIN OPENSSH PRIVATE KEY-----",
    ]
    assert [line for line in lines if line.startswith("1 ")] == [
        "1 main-1 RUNNING 10.0.0.2 http=4711",
        "1 main-1 RUNNING 10.0.0.3 http=4712",
    ]


SERVE = """
hostname
until [ -e /run/cellrun/gang/ready ]; do sleep 0.02; done
echo from $CELLRUN_GANG_RANK | nc -l -p $CELLRUN_PORT_HTTP
"""
FETCH = """
until [ -e /run/cellrun/gang/ready ]; do sleep 0.02; done
read -r rank name state host port < /run/cellrun/gang/peers
until nc -w 5 $host ${port#http=} | grep from; do sleep 0.02; done
cat /etc/hosts
"""


@pytest.mark.engine
def test_members_on_one_cell_connect_by_name_in_a_private_network(
    docker_kit: DockerKit, web: GangWeb
) -> None:
    begin(docker_kit, web)
    members = gang_of(docker_kit, 2)
    web.gang = Gang(tuple(members))
    first, second = launch(docker_kit, SERVE), launch(docker_kit, FETCH, index=1)
    for made in (first, second):
        docker_kit.driver.start(made)
    address = docker_kit.events.started(first.uid).addresses
    assert address is not None, "it is published, too"
    docker_kit.events.started(second.uid)
    mounts = {
        item["Target"]: item for item in docker_kit.inspect(first.uid)["HostConfig"]["Mounts"]
    }
    assert is_in_memory(Path(mounts["/run/cellrun/ssh"]["Source"]))
    assert all(item["ReadOnly"] for item in mounts.values())
    web.gang = Gang(tuple(running(member, address["http"]) for member in members), is_ready=True)
    assert docker_kit.events.ended(second.uid).exit_code == 0
    assert docker_kit.events.ended(first.uid).exit_code == 0
    assert docker_kit.log(first.uid) == "main-0\n"
    log = docker_kit.log(second.uid)
    assert log.startswith("from 0\n127.0.0.1\tlocalhost\n")
    assert "main-0" not in log, "the hosts file does not shadow what the engine answers"
    docker_kit.driver.remove(first.uid)
    until(lambda: not Path(mounts["/run/cellrun/ssh"]["Source"]).exists())
    count = web.count_requests()
    assert count == max(web.count_requests(first.uid), web.count_requests(second.uid)), (
        "one question for both"
    )


WATCH = """
stat -c '%a %u' /run/cellrun/ssh/id_ed25519
stat -c '%a' /run/cellrun/ssh
echo x > /run/cellrun/ssh/id_ed25519
echo x > /etc/hosts
seen=
while :; do
  now=$(grep main-1 /etc/hosts)
  [ "$now" = "$seen" ] || echo "$now"
  seen=$now
  case "$now" in 10.0.0.3*) exit;; esac
  sleep 0.02
done
"""


@pytest.mark.engine
def test_hosts_file_follows_a_peer_through_an_outage_and_a_cell_restart(
    docker_kit: DockerKit, web: GangWeb
) -> None:
    begin(docker_kit, web)
    me, other, late = gang_of(docker_kit, 3, network="default")
    web.gang = Gang((running(me), other, late))
    made = launch(docker_kit, WATCH, network="default", user="12345:12345")
    docker_kit.driver.start(made)
    docker_kit.events.started(made.uid)
    until(lambda: "it does not run" in docker_kit.log(made.uid))
    web.is_away.set()
    until(lambda: any(request.path.endswith("/gang") for request in web.requests[-1:]))
    web.gang = Gang((running(me), running(other, "10.0.0.2:1", cell="cell-2"), late))
    web.is_away.clear()
    until(lambda: "10.0.0.2\tmain-1" in docker_kit.log(made.uid))
    # Attempt number 2 of this member has replaced it: its files do not change any more.
    web.gang = Gang((running(me, number=2), running(other, "10.0.0.9:1", cell="cell-2"), late))
    count = web.count_requests()
    until(lambda: web.count_requests() > count + 1)
    docker_kit.begin_again()
    docker_kit.driver.adopt(made)
    web.gang = Gang((running(me), running(other, "10.0.0.3:1", cell="cell-3"), late))
    assert docker_kit.events.ended(made.uid).exit_code == 0
    lines = docker_kit.log(made.uid).splitlines()
    assert lines[0].startswith("444 "), "ssh takes a key that others may read only of another user"
    assert lines[0] != "444 12345"
    assert lines[1] == "755"
    found = [line for line in lines[2:] if not line.startswith("#")]
    assert found == ["10.0.0.2\tmain-1", "10.0.0.3\tmain-1"]
    assert docker_kit.log(made.uid, "stderr").count("Read-only file system") == 2


def test_gang_update_reaches_a_member_whose_own_request_is_refused(
    process_kit: ProcessKit, web: GangWeb
) -> None:
    begin(process_kit, web)
    members = gang_of(process_kit, 2)
    web.gang = Gang(tuple(members))
    wait = "until [ -e $CELLRUN_ROOT/run/cellrun/gang/ready ]; do sleep 0.02; done"
    made = [launch(process_kit, wait, index=n) for n in (0, 1)]
    for one in made:
        process_kit.driver.start(one)
        process_kit.events.started(one.uid)
    web.refused.add(made[0].uid)
    web.gang = Gang(tuple(running(member) for member in members), is_ready=True)
    for one in made:
        assert process_kit.events.ended(one.uid).exit_code == 0


def test_restarted_gang_is_updated_as_fast_as_the_first_one(
    process_kit: ProcessKit, web: GangWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Longer than the test waits: a late member gets the answer at once, without another poll.
    monkeypatch.setattr(gang, "LONG_SECONDS", 2 * SECONDS)
    begin(process_kit, web)
    [member] = gang_of(process_kit, 1)
    wait = "until [ -e $CELLRUN_ROOT/run/cellrun/gang/ready ]; do sleep 0.02; done"
    for number in (1, 2):
        web.gang = Gang((replace(member, number=number),))
        made = launch(process_kit, wait, number=number)
        process_kit.driver.start(made)
        process_kit.events.started(made.uid)
        web.gang = Gang((running(member, number=number),), is_ready=True)
        assert process_kit.events.ended(made.uid).exit_code == 0


def test_launch_context_of_another_member_prevents_the_start(
    process_kit: ProcessKit, web: GangWeb
) -> None:
    begin(process_kit, web)
    web.gang = Gang(tuple(gang_of(process_kit, 1)))
    made = launch(process_kit, "true", index=1)
    process_kit.driver.start(made)
    ended = process_kit.events.ended(made.uid)
    assert (ended.failure_kind, ended.reason) == ("system", "web")
    assert ended.message == "gang: the launch context is of another member"
    assert process_kit.starts(made.uid) == 0


@pytest.mark.engine
def test_only_gang_members_publish_ports_on_the_gateway_address(
    docker_kit: DockerKit, web: GangWeb
) -> None:
    begin(docker_kit, web)
    web.gang = Gang(tuple(gang_of(docker_kit, 1)))
    member = launch(docker_kit, "sleep 300")
    alone = launch(docker_kit, "sleep 300", is_gang=False, network="default")
    for made in (member, alone):
        docker_kit.driver.start(made)
        docker_kit.events.started(made.uid)
    [config] = docker_kit.outside.inspect_network("bridge")["IPAM"]["Config"]
    # The engine omits the gateway of a bridge that it has made itself, the first address.
    gateway = config.get("Gateway") or str(next(ip_network(config["Subnet"]).hosts()))
    for made, host in ((member, gateway), (alone, "127.0.0.1")):
        addresses = docker_kit.events.started(made.uid).addresses
        assert addresses is not None
        assert addresses["http"].startswith(f"{host}:")
        ports = docker_kit.inspect(made.uid)["NetworkSettings"]["Ports"]
        assert [one["HostIp"] for one in ports["20000/tcp"]] == [host]


@pytest.mark.engine
@pytest.mark.parametrize("spec", [{"network": "none", "ports": ()}, {"read_only": True}])
def test_member_files_exist_without_network_and_in_read_only_containers(
    docker_kit: DockerKit, web: GangWeb, spec: dict[str, Any]
) -> None:
    begin(docker_kit, web)
    shared = {"network": "gang", "ports": ("http",), **spec}
    shared.pop("read_only", None)
    me, other = gang_of(docker_kit, 2, **shared)
    web.gang = Gang((running(me), running(other, "10.0.0.2:1", cell="cell-2")), is_ready=True)
    script = "cat /etc/hosts /run/cellrun/gang/ready; head -1 /run/cellrun/ssh/id_ed25519"
    made = launch(docker_kit, script, **spec)
    docker_kit.driver.start(made)
    assert docker_kit.events.ended(made.uid).exit_code == 0
    lines = docker_kit.log(made.uid).splitlines()
    far = "10.0.0.2\tmain-1" if "read_only" in spec else "# main-1: network: none reaches no peer"
    assert lines[-2:] == [far, "-----BEGIN OPENSSH PRIVATE KEY-----"]
