"""What a member of a gang sees of the others: names, addresses, ports, and why some have none."""

import json

import pytest

from controlplane.contract.codec import MalformedMessage
from controlplane.contract.messages.gang import Gang, GangGroup, GangKey, GangMember
from controlplane.contract.messages.launch_context import LaunchContext
from controlplane.contract.states import TaskState as S
from workers.attempt.gangs.files import (
    Peer,
    hosts_text,
    list_peers,
    peers_json,
    peers_table,
    ssh_config,
)
from workers.attempt.gangs.gang import GangPollInterval

WORKER = GangGroup("worker", network="gang", ports=("http", "ssh"))
OPEN = GangGroup("open", network="default", ports=("http", "ssh"))
SHUT = GangGroup("shut", network="none")
PLAIN = GangGroup("plain", task_type="process", ports=("http", "ssh"))
AT = {"ssh": "10.0.0.2:40002", "http": "10.0.0.2:40001"}  # as the database sorts them


def member(rank: int, group: GangGroup = WORKER, **more: object) -> GangMember:
    fields = {"state": S.RUNNING, "number": 1, "cell": "cell-1", "addresses": AT, **more}
    return GangMember(rank, group, rank, **fields)  # type: ignore[arg-type]


def seen(me: GangMember, other: GangMember) -> Peer:
    return list_peers(Gang((me, other)), me)[1]


def test_gang_survives_a_serialization_round_trip() -> None:
    gang = Gang(
        (member(0), member(1, OPEN, state=S.PENDING, cell=None, addresses={}, number=0)),
        is_ready=True,
        key=GangKey("secret", "open"),
    )
    assert Gang.read(json.loads(json.dumps(gang.body()))) == gang
    assert "secret" not in repr(gang)


@pytest.mark.parametrize(
    "row", [[], [1, 0, 3, 1, "c", {}], [0, 0, 99, 1, "c", {}], [0, "0", 3, 1, "c", {}], "row"]
)
def test_malformed_gang_is_refused(row: object) -> None:
    with pytest.raises(MalformedMessage):
        Gang.read({"groups": [WORKER.body()], "members": [row]})


def test_gang_is_settled_when_no_member_is_pending() -> None:
    assert Gang((member(0), member(1, state=S.SUCCEEDED))).is_settled
    for state in (S.PENDING, S.ASSIGNED, S.BUILDING):
        assert not Gang((member(0), member(1, state=state))).is_settled


def test_peer_on_the_same_cell_is_reached_by_name_in_the_gang_network() -> None:
    peer = seen(member(0), member(1))
    assert (peer.host, dict(peer.ports)) == ("worker-1", {"http": 20000, "ssh": 20001})
    assert (peer.is_private, peer.is_here) == (True, True)


@pytest.mark.parametrize(
    ("me", "other"),
    [
        (member(0), member(1, cell="cell-2")),
        (member(0, OPEN), member(1)),
        (member(0), member(1, OPEN)),
        (member(0, PLAIN), member(1)),
        (member(0, PLAIN), member(1, PLAIN)),
    ],
)
def test_other_peers_are_reached_at_their_published_addresses(
    me: GangMember, other: GangMember
) -> None:
    peer = seen(me, other)
    assert (peer.host, dict(peer.ports)) == ("10.0.0.2", {"http": 40001, "ssh": 40002})
    assert not peer.is_private


@pytest.mark.parametrize(
    ("me", "other", "why"),
    [
        (member(0), member(1, state=S.BUILDING), "it does not run"),
        (member(0), member(1, state=S.SUCCEEDED), "it does not run"),
        (member(0), member(1, cell="cell-2", addresses={}), "it publishes no ports"),
        (member(0, SHUT), member(1), "network: none reaches no peer"),
        (
            member(0),
            member(1, cell="cell-2", addresses={"http": "127.0.0.1:1"}),
            "its cell cell-2 is reached at 127.0.0.1, which in a container is itself",
        ),
        (
            member(0),
            member(1, cell="cell-2", addresses={"http": "[::1]:1"}),
            "its cell cell-2 is reached at ::1, which in a container is itself",
        ),
    ],
)
def test_unreachable_peer_carries_the_reason(me: GangMember, other: GangMember, why: str) -> None:
    peer = seen(me, other)
    assert (peer.host, dict(peer.ports), peer.why) == (None, {}, why)
    assert f"# {other.name}: {why}\n" in hosts_text(me, [peer], lambda host: host)


def test_process_reaches_peers_on_its_host_by_loopback() -> None:
    other = member(1, PLAIN, addresses={"http": "127.0.0.1:4711"})
    peer = seen(member(0, PLAIN), other)
    assert (peer.host, dict(peer.ports)) == ("127.0.0.1", {"http": 4711})


def test_hosts_file_lists_only_peers_on_other_cells() -> None:
    far = member(2, cell="cell-2", addresses={"http": "gpu-7.example:40001"})
    lost = member(3, cell="cell-3", addresses={"http": "unknown.example:40001"})
    me = member(0)
    peers = list_peers(Gang((me, member(1), far, lost)), me)
    text = hosts_text(me, peers, {"gpu-7.example": "10.0.0.7"}.get)
    assert text.splitlines() == [
        "127.0.0.1\tlocalhost",
        "::1\tlocalhost ip6-localhost ip6-loopback",
        "10.0.0.7\tworker-2",
        "# worker-3: unknown.example has no address that its cell can find",
    ]
    alone = member(0, OPEN)
    assert "127.0.0.1\topen-0\n" in hosts_text(alone, list_peers(Gang((alone,)), alone), str)


def test_peer_files_for_programs_and_shells_agree() -> None:
    me = member(0)
    gang = Gang((me, member(1, cell="cell-2"), member(2, state=S.PENDING)), is_ready=True)
    peers = list_peers(gang, me)
    document = json.loads(peers_json(gang, me, peers))
    assert (document["size"], document["rank"], document["name"], document["ready"]) == (
        3,
        0,
        "worker-0",
        True,
    )
    assert document["members"][1] == {
        "rank": 1,
        "name": "worker-1",
        "group": "worker",
        "index": 1,
        "state": "RUNNING",
        "attempt": 1,
        "cell": "cell-2",
        "is_here": False,
        "host": "10.0.0.2",
        "ports": {"http": 40001, "ssh": 40002},
        "why": None,
    }
    assert peers_table(peers).splitlines() == [
        "0 worker-0 RUNNING worker-0 http=20000 ssh=20001",
        "1 worker-1 RUNNING 10.0.0.2 http=40001 ssh=40002",
        "2 worker-2 PENDING -",
    ]


def test_ssh_config_has_each_peer_by_name_with_a_host_key_per_attempt() -> None:
    me = member(0)
    far = member(2, cell="cell-2", number=4)
    gang = Gang((me, member(1), far, member(3, OPEN, cell="cell-2", addresses={"http": "h:1"})))
    text = ssh_config(list_peers(gang, me), "/run/cellrun/ssh/id_ed25519")
    assert (
        "Host worker-2\n  HostName 10.0.0.2\n  Port 40002\n  HostKeyAlias worker-2.attempt-4\n"
        in text
    )
    assert "Host worker-1\n  HostName worker-1\n  Port 20001\n" in text
    assert "open-3" not in text, "it publishes no port named ssh"
    assert "  IdentityFile /run/cellrun/ssh/id_ed25519\n" in text


def test_launch_context_repr_hides_the_gang_key() -> None:
    gang = Gang((member(0),), key=GangKey("secret", "open"))
    assert "secret" not in repr(LaunchContext(gang=gang.body()))


def test_gang_poll_interval_backs_off_when_settled_or_unavailable() -> None:
    pace = GangPollInterval()
    coming, settled = Gang((member(0), member(1, state=S.BUILDING))), Gang((member(0),))
    assert [pace.after(coming) for _ in range(5)] == [0.2, 0.4, 0.8, 1.0, 1.0]
    assert pace.after(settled) == 5.0
    assert [pace.after(None) for _ in range(7)] == [1, 2, 4, 8, 15, 30, 30]
    assert pace.after(coming) == 1.0
    assert [pace.after(coming) for _ in range(60)][-1] == 5.0
