"""S3.7: members of a gang know each other, share a key pair, and have a network of their own.

Source: Backend.AI, "Session Start Flow", the stage of cluster sessions: "SSH key pairs are
generated for communication between nodes in the cluster, and a cluster-dedicated network is
configured through network plugins. This establishes an environment where multiple containers can
cooperate as a single session."
"""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import docker
import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from controlplane.models import Attempt, Job
from tests.scenarios.cells import LiveStage, RealCell, script_of

READY = "until [ -e {root}/run/cellrun/gang/ready ]; do sleep 0.02; done;"
KEYS = "cd {root}/run/cellrun/ssh && cat id_ed25519.pub authorized_keys id_ed25519"
# At this port nothing is published.
SERVE = "echo from $(hostname) > /tmp/word; nc -l -p 9000 < /tmp/word; echo served"
FETCH = "until nc -w 5 {host} 9000 > /tmp/heard && [ -s /tmp/heard ]; do sleep 0.05; done;"
TRY = "if nc -w 2 {host} 9000 < /dev/null; then echo reached; else echo out of reach; fi"
TALK = "echo from rank 0 > /tmp/word; nc -l -p $CELLRUN_PORT_TALK < /tmp/word; echo served"
LISTEN = (
    READY + " read -r rank name state host port < /run/cellrun/gang/peers;"
    " until nc -w 5 $host ${port#talk=} | grep from; do sleep 0.05; done"
)
WHOLE = {"cpu": 0.1, "memory": "4Gi"}


def group(live: LiveStage, cell: RealCell, name: str, script: str, **more: Any) -> dict[str, Any]:
    """A group of the gang that runs the script."""
    return live.group(name, **{**script_of(cell, script.replace("{root}", cell.root)), **more})


def gang(live: LiveStage, *groups: dict[str, Any]) -> Job:
    return live.submit(coscheduled=True, groups=list(groups))


def logs(live: LiveStage, job: Job) -> list[str]:
    """What each member wrote, by rank, after all have succeeded."""
    live.until_settled(job)
    assert live.states(job) == ["SUCCEEDED"] * len(live.tasks(job)), live.describe()
    return [str(live.until(lambda one=one: live.log(one))) for one in live.newest(job)]  # type: ignore[misc]


def test_members_get_rank_size_and_hostnames_of_their_gang(live: LiveStage, cell: RealCell) -> None:
    script = "echo $CELLRUN_GANG_RANK of $CELLRUN_GANG_SIZE: $CELLRUN_GANG_HOSTS"
    groups = (group(live, cell, "driver", script), group(live, cell, "worker", script, replicas=2))
    names = "driver-0,worker-0,worker-1"
    assert logs(live, gang(live, *groups)) == [f"{rank} of 3: {names}\n" for rank in range(3)]


def test_members_share_one_key_pair_per_gang(live: LiveStage, cell: RealCell) -> None:
    keys_of = [
        [
            read_keys(text)
            for text in logs(live, gang(live, group(live, cell, "w", KEYS, replicas=2)))
        ]
        for _ in range(2)
    ]
    for members in keys_of:
        assert members[0] == members[1]
        public, admitted, of_private = members[0]
        assert public == admitted == of_private
    assert keys_of[0] != keys_of[1]


def read_keys(text: str) -> list[bytes]:
    """What a member found: its public key, the one that it lets in, that of its private key."""
    public, admitted, private = text.split("\n", 2)
    found = [load_ssh_public_key(line.encode()) for line in (public, admitted)]
    found.append(load_ssh_private_key(private.encode(), None).public_key())
    return [key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) for key in found]


def test_job_outside_a_gang_gets_no_gang_files_or_variables(
    live: LiveStage, cell: RealCell
) -> None:
    script = "ls {root}/run/cellrun 2> /dev/null; env | grep GANG; echo alone"
    job = live.run(cell, script.replace("{root}", cell.root))
    assert logs(live, job) == ["alone\n"]


@pytest.mark.engine
def test_member_reaches_published_ports_of_members_on_another_cell(
    live: LiveStage, docker_cell: RealCell
) -> None:
    live.open_cell("docker", "cell-2")
    job = gang(
        live,
        group(live, docker_cell, "server", TALK, ports=["talk"], resources=WHOLE),
        group(live, docker_cell, "client", LISTEN, resources=WHOLE),
    )
    assert logs(live, job) == ["served\n", "from rank 0\n"]
    assert {one.cell.name for one in live.newest(job)} == {"cell-1", "cell-2"}


# ------------------------------------------------------------------------- the private network


@pytest.fixture
def engine() -> Iterator[Any]:
    with closing(docker.APIClient(version="auto")) as engine:
        yield engine


def networks(engine: Any, attempt: Attempt) -> dict[str, Any]:
    """The networks of the attempt's container, by name."""
    found = engine.inspect_container(f"cellrun-{attempt.uid}")["NetworkSettings"]["Networks"]
    return dict(found)


@pytest.mark.engine
def test_members_on_one_cell_reach_each_other_by_name_at_any_port(
    live: LiveStage, docker_cell: RealCell
) -> None:
    serve = group(live, docker_cell, "server", SERVE)
    fetch = group(live, docker_cell, "client", FETCH.format(host="server-0") + "cat /tmp/heard")
    assert logs(live, gang(live, serve, fetch)) == ["served\n", "from server-0\n"]


@pytest.mark.engine
def test_gang_network_is_unreachable_from_outside(
    live: LiveStage, docker_cell: RealCell, engine: Any
) -> None:
    jobs = [
        gang(live, group(live, docker_cell, "w", "nc -l -p 9000", replicas=2)) for _ in range(2)
    ]
    for job in jobs:
        live.until(lambda job=job: live.states(job) == ["RUNNING"] * 2)  # type: ignore[misc]
    of_jobs = [{name for one in live.newest(job) for name in networks(engine, one)} for job in jobs]
    assert [len(names) for names in of_jobs] == [1, 1]
    assert of_jobs[0] != of_jobs[1]
    [[name], _] = of_jobs
    address = networks(engine, live.newest(jobs[0])[0])[name]["IPAddress"]
    script = f"{TRY.format(host=address)}; {TRY.format(host='w-0')}"
    outsider = live.run(docker_cell, script, network="default")
    assert logs(live, outsider) == ["out of reach\nout of reach\n"]


@pytest.mark.engine
def test_group_can_opt_out_of_the_gang_network(
    live: LiveStage, docker_cell: RealCell, engine: Any
) -> None:
    inside = group(live, docker_cell, "inside", "sleep 300")
    outside = group(live, docker_cell, "outside", "sleep 300", network="none")
    job = gang(live, inside, outside)
    live.until(lambda: live.states(job) == ["RUNNING"] * 2)
    first, second = (set(networks(engine, one)) for one in live.newest(job))
    assert not second - {"none"}
    assert not first & {"none", "bridge", "host"}


@pytest.mark.engine
def test_gang_network_is_removed_with_the_gang(
    live: LiveStage, docker_cell: RealCell, engine: Any
) -> None:
    job = gang(live, group(live, docker_cell, "w", READY + " hostname", replicas=2))
    live.until(lambda: all(live.states(job)) and live.newest(job))
    assert sorted(logs(live, job)) == ["w-0\n", "w-1\n"]
    installation = docker_cell.config.installation

    def is_gone() -> bool:
        filters = {"label": f"cellrun.installation={installation}"}
        return not engine.networks(filters=filters)

    live.until(is_gone)
