"""Mounts and privileges over the API: only what the pool allows, wherever a job comes in."""

from typing import Any

import pytest

from controlplane.models import Job
from controlplane.queries.attempts.group_specs import load_group_specs
from tests.integration.api.conftest import Caller

JOB: dict[str, Any] = {"name": "a", "image": "busybox"}
MOUNT = {"source": "/data/a", "target": "/in", "read_only": True}
HOST_ACCESS: dict[str, Any] = {
    "mounts": [MOUNT],
    "privileged": True,
    "capabilities": ["SYS_PTRACE"],
}
FIELDS = ["mounts[0].source", "privileged", "capabilities[0]"]


@pytest.mark.parametrize("path", ["/jobs", "/jobs:dry-run", "/jobs:batch"])
def test_mounts_and_privileges_not_allowed_by_the_pool_are_refused(
    submitter: Caller, path: str
) -> None:
    body: Any = {**JOB, **HOST_ACCESS}
    prefix = ""
    if path == "/jobs:batch":
        body, prefix = [body], "[0]."
    answer = submitter.post(path, body)
    assert (answer.status, list(answer.faults)) == (422, [prefix + field for field in FIELDS])
    expected = "pool default allows no mount of /data/a; it allows none"
    assert answer.faults[prefix + FIELDS[0]] == expected
    assert not Job.objects.exists()


def test_raw_sockets_need_a_pool_that_allows_them(submitter: Caller, operator: Caller) -> None:
    wanted = {**JOB, "capabilities": ["NET_RAW"]}
    refused = submitter.post("/jobs", wanted)
    assert (refused.status, list(refused.faults)) == (422, ["capabilities[0]"])
    assert operator.put("/pools/default", {"allowed_capabilities": ["NET_RAW"]}).status == 200
    assert submitter.post("/jobs", wanted).status == 201
    [group] = Job.objects.get().groups.all()
    assert load_group_specs([group.pk]).read[group.pk].capabilities == ("NET_RAW",)
    more = submitter.post("/jobs", {**JOB, "capabilities": ["NET_RAW", "SYS_ADMIN"]})
    assert list(more.faults) == ["capabilities[1]"]


def test_present_networks_of_the_pool_reach_the_cell_with_urls_of_submitters(
    submitter: Caller, operator: Caller
) -> None:
    inputs = [{"path": "/in/x", "url": "http://files.example/x"}]
    groups = [
        {"name": "fetches", "image": "busybox", "inputs": inputs},
        {"name": "reads", "image": "busybox", "inputs": [{"path": "/in/x", "content": "x"}]},
    ]
    assert submitter.post("/jobs", {"name": "a", "groups": groups}).status == 201
    fetches, reads = Job.objects.get().groups.order_by("position")
    for networks in (["10.1.0.0/16", "fd00::/8"], []):
        assert operator.put("/pools/default", {"input_networks": networks}).status == 200
        specs = load_group_specs([fetches.pk, reads.pk]).read
        assert specs[fetches.pk].input_networks == tuple(networks)
        assert specs[reads.pk].input_networks == ()


def test_allowed_mounts_and_privileges_reach_the_cell(submitter: Caller, operator: Caller) -> None:
    allowed = {"allowed_mounts": [{"path": "/data", "read_only": True}], "privileged_allowed": True}
    assert operator.put("/pools/default", allowed).status == 200
    assert submitter.post("/jobs", {**JOB, **HOST_ACCESS}).status == 201
    [group] = Job.objects.get().groups.all()
    spec = load_group_specs([group.pk]).read[group.pk]
    assert [mount.body() for mount in spec.mounts] == [MOUNT]
    assert (spec.privileged, spec.capabilities) == (True, ("SYS_PTRACE",))
    writable = {**JOB, "mounts": [{**MOUNT, "read_only": False}]}
    assert list(submitter.post("/jobs", writable).faults) == ["mounts[0].read_only"]
    # Taken back, it holds for what is submitted from now on.
    assert operator.put("/pools/default", {"allowed_mounts": []}).status == 200
    assert submitter.post("/jobs", {**JOB, "mounts": [MOUNT]}).status == 422
