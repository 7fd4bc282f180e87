"""Limits of a pool for the values of jobs: what is refused, and where defaults give way."""

from dataclasses import replace
from typing import Any

import pytest

from controlplane.domain.jobs.admission import RERUN_CHECKS, AdmissionCandidate, judge
from controlplane.domain.jobs.pool_limits import find_limit_faults, limit_defaults
from controlplane.domain.jobs.submission import JobsRefused
from controlplane.spec import JobSpec, parse_job
from controlplane.spec.limits import JobLimits
from controlplane.spec.parsing import field_path
from tests.unit.domain.jobs.test_admission import FACTS, POOL, Hooks, admitted
from tests.unit.domain.jobs.test_admission import faults as refused

JOB: dict[str, Any] = {"name": "a", "image": "busybox"}
CHECK: dict[str, Any] = {"command": ["true"]}
DAY = 86_400


def faults(limits: JobLimits | None = None, **fields: Any) -> dict[str, str]:
    spec = limit_defaults(parse_job({**JOB, **fields}), limits or JobLimits())
    found = find_limit_faults(spec, limits or JobLimits(), pool="gpu")
    return {field_path(place, is_short="groups" not in fields): text for place, text in found}


def checked(**check: Any) -> dict[str, Any]:
    return {"kind": "inference", "health_check": {**CHECK, **check}}


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({"max_pids": 16_385}, "max_pids", "must be at most 16384 in pool gpu"),
        (
            {"ttl_seconds_after_finished": 90 * DAY + 1},
            "ttl_seconds_after_finished",
            "must be at most 7776000 s in pool gpu",
        ),
        ({"retries": {"failure": 1_001}}, "retries.failure", "must be at most 1000 in pool gpu"),
        ({"retries": {"system": 1_001}}, "retries.system", "must be at most 1000 in pool gpu"),
        (
            {"retries": {"preemption": 10**6}},
            "retries.preemption",
            "must be at most 1000 in pool gpu",
        ),
        (
            checked(interval_seconds=0.9),
            "health_check.interval_seconds",
            "must be at least 1 s in pool gpu",
        ),
        ({"shm": "65537Mi"}, "shm", "must be at most 64Gi in pool gpu"),
    ],
)
def test_value_beyond_a_shipped_limit_is_refused_with_the_limit(
    fields: dict[str, Any], field: str, text: str
) -> None:
    assert faults(**fields) == {field: text}


def test_values_at_the_limits_are_accepted() -> None:
    largest = {"failure": 1_000, "preemption": 1_000, "system": 1_000}
    fields = {"max_pids": 16_384, "ttl_seconds_after_finished": 90 * DAY, "retries": largest}
    fields |= {"shm": "64Gi", "ports": [f"p{n}" for n in range(16)]}
    assert faults(**fields, stop_grace_seconds=3_600, **checked(interval_seconds=1)) == {}


def test_pool_sets_its_own_limits() -> None:
    limits = JobLimits(max_grace_seconds=30, max_retries=5, min_check_interval_seconds=2.5)
    found = faults(
        limits, stop_grace_seconds=30.5, retries={"failure": 6}, **checked(interval_seconds=2)
    )
    assert found == {
        "stop_grace_seconds": "must be at most 30 s in pool gpu",
        "retries.failure": "must be at most 5 in pool gpu",
        "health_check.interval_seconds": "must be at least 2.5 s in pool gpu",
    }
    assert faults(JobLimits(max_pids=20_000), max_pids=20_000) == {}


def test_pool_limits_published_ports_outputs_and_shared_memory() -> None:
    limits = JobLimits(max_ports=1, max_outputs=1, max_shm_mib=128)
    outputs = [{"name": name, "path": f"/out/{name}"} for name in "ab"]
    assert faults(limits, ports=["a"], outputs=outputs[:1], shm="128Mi") == {}
    assert faults(limits, ports=["a", "b"], outputs=outputs, shm="129Mi") == {
        "ports": "must have at most 1 items in pool gpu",
        "outputs": "must have at most 1 items in pool gpu",
        "shm": "must be at most 128Mi in pool gpu",
    }
    none = JobLimits(max_ports=0, max_outputs=0)
    assert faults(none) == {}
    assert set(faults(none, ports=["a"], outputs=outputs[:1])) == {"ports", "outputs"}


def test_pool_requires_the_permission_of_the_registry_for_each_attempt() -> None:
    limits = JobLimits(always_pull=True)
    spec = limit_defaults(parse_job(JOB), limits)
    assert spec.groups[0].pull_policy == "always"
    assert faults(limits) == faults(limits, pull_policy="always") == {}
    assert faults(limits, pull_policy="never") == {"pull_policy": "must be always in pool gpu"}
    process = parse_job({"name": "a", "task_type": "process", "command": ["true"]})
    assert limit_defaults(process, limits) is process
    assert list(find_limit_faults(process, limits, pool="gpu")) == []


def test_fault_names_the_group_and_the_level_of_retries() -> None:
    groups = [
        {"name": "x", "image": "y", "retries": {"failure": 6}},
        {"name": "z", "image": "y", "max_pids": 101},
    ]
    limits = JobLimits(max_pids=100, max_retries=5)
    spec = parse_job({"name": "a", "retries": {"system": 7}, "groups": groups})
    places = [
        place for place, _ in find_limit_faults(limit_defaults(spec, limits), limits, pool="p")
    ]
    assert places == [
        ("retries", "system"),
        ("groups", 0, "retries", "failure"),
        ("groups", 1, "max_pids"),
    ]


def test_defaults_give_way_to_lower_limits() -> None:
    limits = JobLimits(
        max_pids=100, max_ttl_seconds=DAY, max_grace_seconds=5, max_retries=0, max_shm_mib=32
    )
    groups = [{"name": "x", "image": "y"}, {"name": "z", "image": "y", "max_pids": 50}]
    for body in (JOB, {"name": "a", "groups": groups}):
        spec = limit_defaults(parse_job(body), limits)
        assert list(find_limit_faults(spec, limits, pool="p")) == []
        assert spec.ttl_seconds_after_finished == DAY
        assert [group.max_pids for group in spec.groups] in ([100], [100, 50])
        assert {group.stop_grace_seconds for group in spec.groups} == {5}
        assert {group.shm for group in spec.groups} == {32}
    unlimited: JobSpec = parse_job(JOB)
    assert limit_defaults(unlimited, JobLimits()) is unlimited


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, 10_240),
        ({"resources": {"disk": 0}}, 10_240),
        ({"resources": {"disk": "20Gi"}}, None),
        ({"task_type": "process", "image": None, "command": ["true"]}, 10_240),
        ({"task_type": "spark", "image": None}, None),
    ],
)
def test_task_without_a_disk_request_gets_the_default_limit(
    fields: dict[str, Any], limit: int | None
) -> None:
    body = {name: value for name, value in {**JOB, **fields}.items() if value is not None}
    [job] = admitted(body).planned
    assert job.groups[0].launch.get("disk_limit_mib") == limit
    if limit is not None:
        assert "disk_mib" not in job.groups[0].resources, "nothing is reserved"
    none = replace(POOL, job_limits=JobLimits(default_disk_mib=0))
    [job] = admitted(body, facts=replace(FACTS, pools={"default": none})).planned
    assert "disk_limit_mib" not in job.groups[0].launch


def test_limits_hold_for_submissions_and_reruns() -> None:
    pool = replace(POOL, job_limits=JobLimits(max_pids=100, max_ttl_seconds=DAY))
    facts = replace(FACTS, pools={"default": pool})
    text = "must be at most 100 in pool default"
    assert refused({**JOB, "max_pids": 101}, facts=facts) == [(0, "max_pids", text)]
    [job] = admitted(JOB, facts=facts).planned
    assert (job.groups[0].launch["max_pids"], job.spec.ttl_seconds_after_finished) == (100, DAY)
    candidate = AdmissionCandidate(0, parse_job({**JOB, "max_pids": 101}), False, 7, 8, pool)
    with pytest.raises(JobsRefused, match=r"^groups\[0\].max_pids: must be at most 100"):
        judge([candidate], facts, Hooks(), checks=RERUN_CHECKS)
