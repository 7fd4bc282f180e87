"""A gang on two cells, and on one: its members speak by name, and log in to each other."""

import fcntl
import socket
import struct
from collections.abc import Iterator
from typing import Any

import docker
import pytest
import requests

from cellrun import Session
from cellrun.documents import Task
from cellrun.spec_file import read_spec
from tests.architecture.source import ROOT
from tests.e2e.engine import remove_containers
from tests.e2e.ssh_image import IMAGE, require_ssh_image
from tests.e2e.stack import RunningStack, open_folder, remnants, wait_until
from tests.e2e.work import session_of, wait_for_end, whole_log

pytestmark = [pytest.mark.stack, pytest.mark.engine]

SIOCGIFADDR = 0x8915
READY = "until [ -e /run/cellrun/gang/ready ]; do sleep 0.05; done"
# Rank 0 sends a word over each connection, and accepts logins with the gang's key.
SERVE = """
export PATH=$PATH:/usr/bin:/usr/sbin:/usr/lib/dropbear
mkdir -p /root/.ssh
cp /run/cellrun/ssh/authorized_keys /root/.ssh/
dropbearkey -t ed25519 -f /tmp/host > /tmp/made 2>&1
dropbear -F -E -s -r /tmp/host -p $CELLRUN_PORT_SSH 2> /tmp/log &
hostname > /tmp/word
( while :; do nc -l -p $CELLRUN_PORT_TALK < /tmp/word; done ) &
until grep -q "Exit (root)" /tmp/log; do sleep 0.05; done
cat /tmp/visited
"""
# Rank 1 finds the ports in its table of peers, and for all else uses the name.
VISIT = f"""
export PATH=$PATH:/usr/bin:/usr/lib/dropbear
{READY}
read -r rank name state host ports < /run/cellrun/gang/peers
for port in $ports; do eval "port_${{port%%=*}}=${{port#*=}}"; done
until nc -w 5 worker-0 $port_talk > /tmp/heard && [ -s /tmp/heard ]; do sleep 0.05; done
echo heard $(cat /tmp/heard) from $name at $host
dropbearconvert openssh dropbear /run/cellrun/ssh/id_ed25519 /tmp/key 2> /tmp/converted
dbclient -y -y -i /tmp/key -p $port_ssh root@worker-0 \\
    "echo rank $CELLRUN_GANG_RANK was here > /tmp/visited; hostname" 2> /tmp/log || cat /tmp/log
"""


@pytest.fixture(scope="module")
def gateway() -> str:
    """The address at which containers of any network reach this host, and each other's ports."""
    with socket.socket() as probe:
        reply = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", b"docker0"))
    return socket.inet_ntoa(reply[20:24])


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    require_ssh_image()
    # Both cells are on this machine, and reached at 127.0.0.1.
    capacity = "cpu=1,memory=256Mi"
    with open_folder() as folder:
        with RunningStack(folder / "home", cells=2, CELLRUN_CELL_CAPACITY=capacity) as running:
            yield running
        remove_containers(running.installation)
        assert remnants(running.home) == []


@pytest.fixture
def session(stack: RunningStack) -> Iterator[Session]:
    with session_of(stack) as session:
        yield session


def cordon(stack: RunningStack, cell: str) -> None:
    """No new work for the cell."""
    address = f"{stack.environment['CELLRUN_URL']}/api/v1/cells/{cell}/cordon"
    token = stack.environment["CELLRUN_OPERATOR_TOKEN"]
    answer = requests.post(address, headers={"Authorization": f"Bearer {token}"}, timeout=10)
    answer.raise_for_status()


def gang_of_two(first: str, second: str, cpu: float, **more: Any) -> dict[str, Any]:
    """A job of two members, each with a script of its own."""
    worker = {
        "name": "worker",
        "replicas": 2,
        "image": IMAGE,
        "command": ["sh", "-c", f"if [ $CELLRUN_GANG_RANK = 0 ]; then {first} else {second} fi"],
        "user": "root",
        "resources": {"cpu": cpu, "memory": "64Mi"},
        "ports": ["talk", "ssh"],
        "timeout_seconds": 60,
        **more,
    }
    return {"name": "gang", "coscheduled": True, "groups": [worker]}


def run_gang(session: Session, cpu: float) -> tuple[list[Task], list[str]]:
    """Its two tasks, and what each of them printed."""
    job = wait_for_end(session, session.submit(gang_of_two(SERVE, VISIT, cpu))["id"])
    tasks = sorted(session.tasks(job["id"]), key=lambda task: task["index"])
    logs = [whole_log(session, str(task["attempt_uid"])) for task in tasks]
    assert job["state"] == "SUCCEEDED", (logs, [task["failure_reason"] for task in tasks])
    return tasks, logs


def test_members_on_two_cells_connect_by_name_and_log_in_by_ssh(
    session: Session, gateway: str
) -> None:
    tasks, logs = run_gang(session, cpu=0.6)
    assert {task["cell_id"] for task in tasks} == {"cell-1", "cell-2"}
    assert logs == ["rank 1 was here\n", f"heard worker-0 from worker-0 at {gateway}\nworker-0\n"]


SERVE_AGAIN = """
[ $CELLRUN_ATTEMPT_NUMBER = 1 ] && exec sleep 300
hostname > /tmp/word
nc -l -p $CELLRUN_PORT_TALK < /tmp/word
"""
CALL_AGAIN = """
cd /run/cellrun/gang
until grep -q '"rank": 1,.*"RUNNING", "attempt": 2' peers.json; do sleep 0.05; done
grep '^1 ' peers > /tmp/row
read -r rank name state host port others < /tmp/row
until nc -w 5 $name ${port#talk=} > /tmp/heard && [ -s /tmp/heard ]; do sleep 0.05; done
cat /tmp/heard
"""


def test_restarted_member_is_found_at_its_new_address(session: Session) -> None:
    job_id = session.submit(gang_of_two(CALL_AGAIN, SERVE_AGAIN, 0.3, min_available=1))["id"]
    caller, called = sorted(session.tasks(job_id), key=lambda task: task["index"])

    def runs() -> bool:
        return all(session.task(one["id"])["state"] == "RUNNING" for one in (caller, called))

    wait_until(runs, seconds=60, what="both run")
    engine = docker.APIClient(version="auto")
    try:
        uid = session.task(called["id"])["attempt_uid"]
        engine.remove_container(f"cellrun-{uid}", force=True)
    finally:
        engine.close()
    job = wait_for_end(session, job_id)
    caller = session.task(caller["id"])
    assert (job["state"], caller["attempt_number"]) == ("SUCCEEDED", 1)
    assert whole_log(session, str(caller["attempt_uid"])) == "worker-1\n"


def test_example_gang_runs_as_documented(session: Session) -> None:
    spec = read_spec(str(ROOT / "examples" / "gang.yaml"))
    job = wait_for_end(session, session.submit(spec)["id"])
    tasks = sorted(session.tasks(job["id"]), key=lambda task: task["index"])
    for task, other in zip(tasks, reversed(tasks), strict=True):
        index = other["index"]
        assert task["result"] == (
            f"ring-{index} says: rank {index} of 2 on {other['cell_id']}\n"
        ), whole_log(session, str(task["attempt_uid"]))


def test_members_on_one_cell_connect_in_a_private_network(
    stack: RunningStack, session: Session
) -> None:
    cordon(stack, "cell-2")
    tasks, logs = run_gang(session, cpu=0.3)
    assert {task["cell_id"] for task in tasks} == {"cell-1"}
    assert logs == ["rank 1 was here\n", "heard worker-0 from worker-0 at worker-0\nworker-0\n"]
