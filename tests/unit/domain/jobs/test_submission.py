"""From a submitted job to its rows: groups, deadlines, specs for cells, what is too large."""

import hashlib
from datetime import timedelta
from typing import Any

import pytest

from controlplane.domain.constraints import Constraint, Operator
from controlplane.domain.jobs.launch import launch_of
from controlplane.domain.jobs.submission import (
    GuidTaken,
    JobsRefused,
    NameTaken,
    PlannedGroup,
    band_of,
    digest_of,
    plan_groups,
    waits_for_jobs,
)
from controlplane.domain.state.states import Band, Exclusive
from controlplane.spec import Fault, JobSpec, parse_job
from tests.harness.domain.facts import NOW

HOUR = timedelta(hours=1)
CPU, MEMORY = "cpu_millis", "memory_mib"


def job(*groups: dict[str, Any], **fields: Any) -> JobSpec:
    """A job of these groups, or of one named main."""
    listed = groups or ({"name": "main"},)
    shown = [group if "task_type" in group else {"image": "busybox", **group} for group in listed]
    return parse_job({"name": "a", "groups": shown, **fields})


def planned(spec: JobSpec, timeout_seconds: float | None = None) -> list[PlannedGroup]:
    changes = {"scheduling_timeout_seconds": timeout_seconds}
    return plan_groups(spec.model_copy(update=changes), now=NOW)


# Digests, bands, errors.


def test_digest_does_not_depend_on_key_order() -> None:
    text, digest = digest_of({"b": [1, 2], "a": {"d": 1, "c": "é"}})
    assert text == '{"a":{"c":"\\u00e9","d":1},"b":[1,2]}'
    assert digest == hashlib.sha256(text.encode()).hexdigest()
    assert digest_of({"a": {"c": "é", "d": 1}, "b": [1, 2]}) == (text, digest)
    assert digest_of({"a": 1})[1] != digest_of({"a": 2})[1]


@pytest.mark.parametrize("band", Band)
def test_band_is_written_in_lower_case(band: Band) -> None:
    assert band_of(job(band=band.name.lower())) is band


def test_refusal_has_position_and_reason() -> None:
    refused = JobsRefused([(0, Fault("name", "is missing")), (3, Fault("pool", "is unknown"))])
    assert refused.faults == ((0, Fault("name", "is missing")), (3, Fault("pool", "is unknown")))
    assert str(refused) == f"{refused.faults[0][1]}; {refused.faults[1][1]}"
    taken = GuidTaken(2, "g", 7)
    assert (taken.position, str(taken)) == (
        2,
        "guid g belongs to job 7, which was submitted differently",
    )
    assert "another job of the same submission" in str(GuidTaken(0, "g", None))
    named = NameTaken(1, "n", 9)
    assert named.position == 1
    assert str(named).startswith("job 9, which is named n, has not ended")


# Groups.


def test_group_row_has_every_submitted_field() -> None:
    spec = job(
        {"name": "first"},
        {
            "name": "second",
            "replicas": 3,
            "min_available": 2,
            "task_type": "process",
            "command": ["true"],
            "resources": {"cpu": 2, "memory": "1Gi"},
            "retries": {"failure": 1},
            "timeout_seconds": 9,
            "depends_on": [{"group": "first", "until": "started"}],
            "constraints": [{"key": "zone", "op": "IN", "values": ["a", "b"], "required": False}],
        },
        placement_tags=["quiet"],
        retries={"preemption": 5},
        exclusive="strict",
    )
    first, second = planned(spec)
    assert (first.position, second.position) == (0, 1)
    assert first.min_available == 1
    assert (first.replicas, list(first.indices)) == (1, [0])
    assert (first.timeout_seconds, list(first.depends_on)) == (None, [])
    assert (first.constraints, first.placement_tags) == ((), ("quiet",))
    assert second == PlannedGroup(
        name="second",
        position=1,
        replicas=3,
        indices=range(3),
        min_available=2,
        resources={CPU: 2000, MEMORY: 1024},
        task_type="process",
        constraints=(Constraint("zone", Operator.IN, ("a", "b"), required=False),),
        placement_tags=("quiet",),
        launch=launch_of(spec.groups[1], exclusive=True)[0],
        contents={},
        depends_on=[{"group": "first", "until": "started"}],
        retries=(1, 5, 3),
        retry_permanent=False,
        at_most_once=False,
        exclusive=Exclusive.STRICT,
        timeout_seconds=9,
        timeout_is_lifetime=False,
        startable_at=None,
        deadline_at=None,
    )


def test_delivery_of_the_group_overrides_that_of_the_job() -> None:
    spec = job({"name": "a"}, {"name": "b", "delivery": "at_least_once"}, delivery="at_most_once")
    assert [row.at_most_once for row in planned(spec)] == [True, False]


@pytest.mark.parametrize(
    ("exclusive", "kind"),
    [(False, Exclusive.NO), (True, Exclusive.LEASE), ("strict", Exclusive.STRICT)],
)
def test_exclusive_maps_to_no_lease_or_strict(exclusive: object, kind: Exclusive) -> None:
    (row,) = planned(job(exclusive=exclusive))
    assert row.exclusive is kind
    assert row.launch["exclusive"] is (kind is not Exclusive.NO)


@pytest.mark.parametrize(
    ("fields", "startable_at"),
    [
        ({}, NOW),
        ({"start_after": (NOW + HOUR).isoformat()}, NOW + HOUR),
        ({"start_after": (NOW - HOUR).isoformat()}, NOW),
        ({"depends_on": [{"job": 7}]}, None),
        ({"existing_job_policy": "replace"}, None),
        ({"existing_job_policy": "keep"}, NOW),
    ],
)
def test_scheduling_deadline_counts_from_the_earliest_start(
    fields: dict[str, Any], startable_at: Any
) -> None:
    spec = job(**fields)
    (row,) = planned(spec, timeout_seconds=60)
    assert row.startable_at == startable_at
    assert row.deadline_at == (startable_at and startable_at + timedelta(minutes=1))
    assert planned(spec)[0].deadline_at is None
    assert waits_for_jobs(spec) is (startable_at is None)


def test_a_group_that_waits_for_another_has_no_deadline_yet() -> None:
    reads = {"path": "/in", "from": {"group": "a", "result": True}}
    _, row = planned(job({"name": "a"}, {"name": "b", "inputs": [reads]}), timeout_seconds=60)
    assert (row.startable_at, row.deadline_at) == (None, None)
    assert list(row.depends_on) == [{"group": "a", "until": "succeeded"}]


def test_launch_has_the_group_fields_and_inputs_by_digest() -> None:
    digest = hashlib.sha256("text é".encode()).hexdigest()
    spec = job(
        {"name": "a"},
        {
            "name": "b",
            "command": ["true"],
            "env": {"A": "b"},
            "shm": "32Mi",
            "inputs": [
                {"path": "/in/text", "content": "text é"},
                {"path": "/in/results", "from": {"group": "a", "result": True}},
            ],
        },
    )
    launch, contents = launch_of(spec.groups[1], exclusive=False)
    assert contents == {digest: "text é".encode()}
    assert launch == {
        "task_type": "container",
        "image": "busybox",
        "command": ["true"],
        "entrypoint": None,
        "workdir": None,
        "user": None,
        "env": {"A": "b"},
        "result_file": "/out/result",
        "timeout_seconds": None,
        "stop_grace_seconds": 10.0,
        "stop_signal": "TERM",
        "pull_policy": "if_not_present",
        "network": "default",
        "max_pids": 1024,
        "read_only": False,
        "exclusive": False,
        "shm_mib": 32,
        "inputs": [
            {"path": "/in/text", "sha256": digest},
            {"path": "/in/results", "from_group": "a"},
        ],
    }
    assert planned(spec)[1].contents == contents
