"""A job is read in both forms with its defaults, or refused with all faults and the limits."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.spec import InvalidSpec, JobSpec, json_schema, parse_job, parse_job_text
from controlplane.spec.group import GroupFields
from controlplane.spec.job import JobFields

SHORT: dict[str, Any] = {"name": "a", "image": "busybox"}


def short(**fields: Any) -> dict[str, Any]:
    return {**SHORT, **fields}


def grouped(*groups: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"name": "a", "groups": [{"image": "busybox", **group} for group in groups], **fields}


def faults_of(body: object) -> dict[str, str]:
    with pytest.raises(InvalidSpec) as refused:
        parse_job(body)
    return {fault.field: fault.detail for fault in refused.value.faults}


# ------------------------------------------------------------------------------- what is taken


def test_the_short_form_is_one_group_named_main_with_the_defaults() -> None:
    job = parse_job(SHORT)
    [group] = job.groups
    assert (group.name, group.replicas, group.task_type) == ("main", 1, "container")
    assert group.resources.amounts() == {"cpu_millis": 500, "memory_mib": 128}
    assert (job.domain, job.project, job.pool, job.band) == ("default",) * 3 + ("interactive",)
    assert (job.minimum(), job.tolerated_failures(), job.has_explicit_minimum()) == (1, 0, False)
    retries = job.retries_of(group)
    assert (retries.failure, retries.preemption, retries.system) == (0, 100, 3)


def test_short_and_grouped_forms_are_equivalent() -> None:
    fields = {"image": "busybox", "replicas": 3, "min_available": 2, "env": {"A": "b"}}
    one = parse_job({"name": "a", **fields})
    other = parse_job({"name": "a", "groups": [{"name": "main", **fields}]})
    assert one.groups[0].model_dump() == other.groups[0].model_dump()
    assert one.minimum() == other.minimum() == 2
    assert one.tolerated_failures() == other.tolerated_failures() == 1


@pytest.mark.parametrize("scheme", ["http", "HTTP", "Https"])
def test_the_scheme_of_a_callback_address_ignores_case(scheme: str) -> None:
    url = parse_job(short(callback={"url": f"{scheme}://Example.org/Path"})).callback.url
    assert url == f"{scheme.lower()}://Example.org/Path"


def test_invalid_callback_address_is_refused_in_upper_case() -> None:
    for text in ("FTP://example.org/", "HTTP:example.org", "HTTP", "HTTP://", "HTTP://a b/"):
        assert faults_of(short(callback={"url": text})) == {
            "callback.url": "must be an address like https://host/path"
        }


def test_yaml_and_json_texts_are_read() -> None:
    assert parse_job_text("name: a\nimage: busybox").name == "a"
    assert parse_job_text(json.dumps(SHORT)).name == "a"


def test_retries_of_a_group_override_single_fields_of_the_job() -> None:
    body = grouped(
        {"name": "x", "retries": {"system": 9}}, {"name": "y"}, retries={"failure": 2, "system": 1}
    )
    job = parse_job(body)
    x, y = (job.retries_of(group) for group in job.groups)
    assert (x.failure, x.preemption, x.system) == (2, 100, 9)
    assert (y.failure, y.preemption, y.system) == (2, 100, 1)


@pytest.mark.parametrize(
    ("fields", "minimum", "tolerated"),
    [
        ({"replicas": 4}, 4, 0),
        ({"replicas": 4, "min_available": 4}, 4, 0),
        ({"replicas": 4, "min_available": 1}, 1, 3),
        ({"replicas": 4, "min_available": 1, "max_task_failures": 0}, 1, 0),
        ({"replicas": 4, "max_task_failures": 2}, 4, 2),
        ({"replicas": 4, "min_available": 0}, 0, 4),
    ],
)
def test_explicit_minimum_sets_the_tolerated_failures(
    fields: dict[str, int], minimum: int, tolerated: int
) -> None:
    job = parse_job(short(**fields))
    assert (job.minimum(), job.tolerated_failures()) == (minimum, tolerated)


def test_group_that_reads_results_depends_on_their_group() -> None:
    reads = {"inputs": [{"from": {"group": "x", "result": True}, "path": "/in/parts/"}]}
    job = parse_job(grouped({"name": "x"}, {"name": "y", **reads}))
    assert [(d.group, d.until) for d in job.groups[1].dependencies()] == [("x", "succeeded")]
    finished = {**reads, "depends_on": [{"group": "x", "until": "finished"}]}
    job = parse_job(grouped({"name": "x"}, {"name": "y", **finished}))
    assert [(d.group, d.until) for d in job.groups[1].dependencies()] == [("x", "finished")]


def test_an_instant_is_read_with_its_offset() -> None:
    job = parse_job(short(start_after="2030-01-31T12:00:00+02:00"))
    assert job.start_after == datetime(2030, 1, 31, 10, tzinfo=UTC)


def test_job_round_trips_through_json() -> None:
    body = grouped(
        {"name": "x", "resources": {"cpu": "1500m", "memory": "1Gi"}, "retries": {"failure": 1}},
        {"name": "y", "depends_on": [{"group": "x"}]},
        start_after="2030-01-31T12:00:00Z",
    )
    job = parse_job(body)
    written = json.loads(job.model_dump_json(by_alias=True, exclude_unset=True))
    assert parse_job(written) == job


@pytest.mark.parametrize(
    "image",
    [
        "busybox",
        "busybox:stable",
        "library/busybox",
        "registry:5000/a/b:1.0_x",
        "localhost/a",
        "ghcr.io/a__b/c-d@sha256:" + "0" * 64,
        "a.b-c.example.com:443/x:tag@sha256:" + "f" * 64,
    ],
)
def test_valid_image_references_are_accepted(image: str) -> None:
    assert parse_job(short(image=image)).groups[0].image == image


# ------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("kind", "written", "in_a_gang", "alone"),
    [
        ("container", None, "gang", "default"),
        ("container", "gang", "gang", None),
        ("container", "default", "default", "default"),
        ("container", "none", "none", "none"),
        ("process", None, "default", "default"),
        ("process", "default", "default", "default"),
        ("runner-x", None, "default", "default"),
    ],
)
def test_containers_of_a_gang_use_the_gang_network_by_default(
    kind: str, written: str | None, in_a_gang: str, alone: str | None
) -> None:
    group = {"name": "a", "task_type": kind, "command": ["x"]}
    group |= {"image": "x"} if kind == "container" else {}
    group |= {"network": written} if written else {}
    for coscheduled, expected in ((True, in_a_gang), (False, alone)):
        if expected is not None:
            job = parse_job({"name": "j", "coscheduled": coscheduled, "groups": [group]})
            assert job.network_of(job.groups[0]) == expected


@pytest.mark.parametrize(
    ("fields", "field", "detail"),
    [
        ({"foo": 1}, "foo", "unknown field"),
        ({"replica": 1}, "replica", "did you mean replicas"),
        ({"retries": {"fail": 1}}, "retries.fail", "unknown field"),
        ({"name": 1}, "name", "must be a text"),
        ({"replicas": "4"}, "replicas", "must be a whole number"),
        ({"replicas": 4.5}, "replicas", "must be a whole number"),
        ({"replicas": True}, "replicas", "must be a whole number"),
        ({"replicas": 0}, "replicas", "must be at least 1"),
        ({"replicas": -1}, "replicas", "must be at least 1"),
        ({"replicas": 10**30}, "replicas", "must be at most 1000000"),
        ({"command": "sleep 1"}, "command", "must be a list"),
        ({"command": ["sleep", 1]}, "command[1]", "must be a text"),
        ({"command": ["x"] * 1001}, "command", "at most 1000 items"),
        ({"env": ["A=b"]}, "env", "must be a mapping"),
        ({"env": {"A": 1}}, "env.A", "must be a text"),
        ({"env": {"1A": "x"}}, "env.1A", "must match"),
        ({"env": {"CELLRUN_X": "x"}}, "env.CELLRUN_X", "set by Cellrun"),
        ({"read_only": "yes"}, "read_only", "must be true or false"),
        ({"image": "Busybox"}, "image", "is not an image reference"),
        ({"image": "a b"}, "image", "is not an image reference"),
        ({"image": ""}, "image", "is not an image reference"),
        ({"image": "a@sha256:12"}, "image", "is not an image reference"),
        ({"image": "a" * 600}, "image", "at most 512 characters"),
        ({"image": None}, "image", "is required for task_type container"),
        ({"name": "A"}, "name", "must match"),
        ({"name": "a" * 64}, "name", "must match"),
        ({"name": "a\n"}, "name", "must match"),
        ({"name": ""}, "name", "must match"),
        ({"pool": "x y"}, "pool", "must match"),
        ({"guid": "x y"}, "guid", "must match"),
        ({"guid": "x" * 256}, "guid", "must match"),
        ({"band": "urgent"}, "band", "must be 'production', 'interactive' or 'batch'"),
        ({"task_type": "V M"}, "task_type", "must match"),
        ({"resources": {"cpu": 0}}, "resources.cpu", "at least 0.01 and at most 100000"),
        ({"resources": {"cpu": 10**9}}, "resources.cpu", "at least 0.01 and at most 100000"),
        ({"resources": {"cpu": -1}}, "resources.cpu", "must not be negative"),
        ({"resources": {"memory": 64}}, "resources.memory", "at least 6Mi and at most 1Pi"),
        ({"resources": {"memory": "64 Mi"}}, "resources.memory", "must be a quantity"),
        ({"resources": {"disk": "2Pi"}}, "resources.disk", "at most 1Pi"),
        ({"timeout_seconds": 0}, "timeout_seconds", "must be at least 0.001"),
        ({"timeout_seconds": 10**9}, "timeout_seconds", "must be at most 31536000"),
        ({"timeout_seconds": 10**400}, "timeout_seconds", ""),
        ({"timeout_seconds": "10"}, "timeout_seconds", "must be a number"),
        ({"stop_grace_seconds": -1}, "stop_grace_seconds", "must be at least 0"),
        ({"stop_grace_seconds": 3601}, "stop_grace_seconds", "must be at most 3600"),
        ({"stop_signal": "SIGFOO"}, "stop_signal", "must be"),
        ({"max_pids": 0}, "max_pids", "must be at least 1"),
        ({"retries": {"failure": -1}}, "retries.failure", "must be at least 0"),
        ({"retries": {"failure": 10**7}}, "retries.failure", "must be at most 1000000"),
        ({"max_task_failures": -1}, "max_task_failures", "must be at least 0"),
        ({"min_available": 2}, "min_available", "must be at most replicas, which is 1"),
        ({"scheduling_timeout_seconds": 0}, "scheduling_timeout_seconds", "must be at least 0.001"),
        ({"ttl_seconds_after_finished": -1}, "ttl_seconds_after_finished", "must be at least 0"),
        ({"start_after": "tomorrow"}, "start_after", "must be an RFC 3339 instant"),
        ({"start_after": "2030-01-01T00:00:00"}, "start_after", "must be an RFC 3339 instant"),
        ({"start_after": "2030-02-30T00:00:00Z"}, "start_after", "not an instant that exists"),
        ({"start_after": "9999-01-01T00:00:00Z"}, "start_after", "must be from 1970 to 2100"),
        ({"labels": {"a b": "c"}}, "labels.a b", "must match"),
        ({"labels": {"a": 1}}, "labels.a", "must be a text"),
        ({"labels": {f"k{n}": "" for n in range(65)}}, "labels", "at most 64 items"),
        ({"annotation": "x" * 16_385}, "annotation", "at most 16384 characters"),
        ({"annotation": "a\x00b"}, "annotation", "NUL"),
        ({"annotation": "\ud800"}, "annotation", "surrogate"),
        ({"workdir": "tmp"}, "workdir", "must be an absolute path"),
        ({"workdir": "/a/../b"}, "workdir", "must be an absolute path"),
        ({"result_file": "/out/"}, "result_file", "must be the path of a file"),
        ({"result_file": "/proc/x"}, "result_file", "must not be below /proc"),
        ({"user": "a b"}, "user", "must match"),
        ({"network": "host"}, "network", "must be 'none', 'default' or 'gang'"),
        ({"inputs": [{"path": "/in"}]}, "inputs[0]", "either content, url or from"),
        ({"inputs": [{"path": "/in", "url": "x"}]}, "inputs[0].url", "must be an address"),
        ({"inputs": [{"path": "/in", "url": "s3://b/../k"}]}, "inputs[0].url", "'..'"),
        ({"secrets": [{"name": "x"}]}, "secrets[0]", "must have either env or path"),
        ({"secrets": [{"name": "x", "env": "CELLRUN_X"}]}, "secrets[0].env", "set by Cellrun"),
        ({"outputs": [{"path": "/a/x"}, {"path": "/b/x"}]}, "outputs[1].name", "named twice"),
        ({"tmpfs": [{"path": "/proc/x"}]}, "tmpfs[0].path", "must not be below /proc"),
        ({"mounts": [{"source": "x", "target": "/y"}]}, "mounts[0].source", "absolute path"),
        ({"capabilities": ["net_raw"]}, "capabilities[0]", "must match"),
        ({"network": "gang"}, "network", "only valid for a coscheduled job"),
        ({"inputs": [{"path": "in", "content": ""}]}, "inputs[0].path", "absolute path"),
        ({"inputs": [{"path": "/in/", "content": ""}]}, "inputs[0].path", "path of a file"),
        ({"inputs": [{"content": ""}]}, "inputs[0].path", "is required"),
        ({"inputs": [{"path": f"/{n}", "content": ""} for n in range(65)]}, "inputs", "at most 64"),
        ({"command": ["x" * 40_000]}, "command", "at most 32768"),
        ({"cache": {"enabled": 1}}, "cache.enabled", "must be true or false"),
        ({"cache": {"key": "k"}}, "cache", "key has no effect unless enabled is true"),
        ({"cache": {"enabled": True, "key": "a/b"}}, "cache.key", "must match"),
        ({"cache": {"enabled": True, "scope": "world"}}, "cache.scope", "'project' or 'domain'"),
        (
            {"cache": {"enabled": True}, "output_base": "s3://b/x"},
            "cache.enabled",
            "is not supported with output_base",
        ),
        (
            {
                "cache": {"enabled": True},
                "outputs": [{"path": "/out/a", "url": "s3://b/a"}],
            },
            "cache.enabled",
            "is not supported with the url of an output",
        ),
    ],
)
def test_invalid_input_fault_has_field_and_limit(
    fields: dict[str, Any], field: str, detail: str
) -> None:
    found = faults_of(short(**fields))
    assert list(found) == [field]
    assert detail in found[field]


def test_every_field_may_be_written_with_its_default() -> None:
    job = parse_job(SHORT)
    at_top = {name: getattr(job, name) for name in JobFields.model_fields}
    of_group = {name: getattr(job.groups[0], name) for name in GroupFields.model_fields}
    body = JobSpec.model_validate({**at_top, "groups": [{"name": "main", **of_group}]}).model_dump(
        mode="json", by_alias=True
    )
    assert (
        parse_job(body).groups[0]
        == JobSpec.model_validate({**at_top, "groups": [{"name": "main", **of_group}]}).groups[0]
    )


def test_all_faults_are_reported_at_once() -> None:
    found = faults_of(
        grouped({"name": "X", "replicas": 0}, {"name": "y", "command": 1}, pool="P", foo=1)
    )
    assert set(found) == {
        "groups[0].name",
        "groups[0].replicas",
        "groups[1].command",
        "pool",
        "foo",
    }


@pytest.mark.parametrize("body", [None, 1, "x", [], [SHORT]])
def test_a_job_is_a_mapping(body: object) -> None:
    assert faults_of(body) == {"": "a job is a mapping of names to values"}


def test_group_fields_beside_groups_are_refused() -> None:
    found = faults_of(grouped({"name": "x"}, image="busybox", replicas=1))
    assert set(found) == {"image", "replicas"}
    assert "does not belong here" in found["image"]


# --------------------------------------------------------------------------------- between fields


@pytest.mark.parametrize(
    ("groups", "field", "detail"),
    [
        (({"name": "x"}, {"name": "x"}), "groups[1].name", "the name of another group"),
        (
            ({"name": "x", "depends_on": [{"group": "z"}]},),
            "groups[0].depends_on[0].group",
            "not a group",
        ),
        (
            ({"name": "x"}, {"name": "y", "depends_on": [{"group": "x"}, {"group": "x"}]}),
            "groups[1].depends_on[1].group",
            "named twice",
        ),
        (({"name": "x", "depends_on": [{"group": "x"}]},), "groups[0].depends_on", "x needs x"),
        (
            ({"name": "x"}, {"name": "y", "depends_on": [{"group": "x", "until": "done"}]}),
            "groups[1].depends_on[0].until",
            "'started', 'succeeded' or 'finished'",
        ),
        (
            ({"name": "x", "task_type": "process", "image": None},),
            "groups[0].command",
            "is required for task_type process",
        ),
        (
            ({"name": "x", "task_type": "process", "command": ["true"]},),
            "groups[0].image",
            "is not supported for task_type process",
        ),
    ],
)
def test_rules_between_fields_are_checked(
    groups: tuple[dict[str, Any], ...], field: str, detail: str
) -> None:
    found = faults_of(grouped(*groups))
    assert detail in found[field]


def test_cycle_of_groups_is_refused() -> None:
    found = faults_of(
        grouped(
            {"name": "a"},
            {"name": "b", "depends_on": [{"group": "c"}, {"group": "a"}]},
            {"name": "c", "inputs": [{"from": {"group": "d", "result": True}, "path": "/in"}]},
            {"name": "d", "depends_on": [{"group": "b"}]},
        )
    )
    assert found == {"groups[1].depends_on": "is a cycle: b needs c needs d needs b"}


@pytest.mark.parametrize("minimum", [2, 7])
def test_job_minimum_is_between_the_sum_of_its_groups_and_all_replicas(minimum: int) -> None:
    body = grouped(
        {"name": "x", "replicas": 3, "min_available": 1},
        {"name": "y", "replicas": 3, "min_available": 2},
        min_available=minimum,
    )
    assert "at least 3" in faults_of(body)["min_available"]
    assert "at most 6" in faults_of(body)["min_available"]


@pytest.mark.parametrize(
    ("inputs", "place", "detail"),
    [
        ([{"from": {"group": "q", "result": True}, "path": "/in"}], "[0].from.group", "is not a"),
        ([{"from": {"group": "x", "result": False}, "path": "/in"}], "[0].from.result", "must be"),
        (
            [{"path": "/in", "content": ""}, {"path": "/in/x", "content": ""}],
            "[1].path",
            "overlaps",
        ),
        ([{"path": "/in", "content": ""}, {"path": "/in", "content": ""}], "[1].path", "another"),
    ],
)
def test_invalid_or_overlapping_inputs_are_refused(
    inputs: list[dict[str, Any]], place: str, detail: str
) -> None:
    found = faults_of(grouped({"name": "x"}, {"name": "y", "inputs": inputs}))
    assert detail in found[f"groups[1].inputs{place}"]


def test_input_needs_a_group_that_succeeds_and_writes_a_result() -> None:
    reads = {"inputs": [{"from": {"group": "x", "result": True}, "path": "/in"}]}
    started = {"depends_on": [{"group": "x", "until": "started"}]}
    found = faults_of(grouped({"name": "x"}, {"name": "y", **reads, **started}))
    assert "has started" in found["groups[1].inputs[0].from.group"]
    output = {"inputs": [{"from": {"group": "x", "output": "o"}, "path": "/in"}]}
    source = {"name": "x", "outputs": [{"name": "o", "path": "/o"}]}
    found = faults_of(grouped(source, {"name": "y", **output, **started}))
    assert "has started" in found["groups[1].inputs[0].from.group"]
    found = faults_of(grouped({"name": "x", "result_file": None}, {"name": "y", **reads}))
    assert "no result_file" in found["groups[1].inputs[0].from.group"]


# ------------------------------------------------------------------------------------- schema, fuzz


def test_json_schema_has_every_field_of_both_forms() -> None:
    schema = json_schema()
    parts = schema["$defs"]
    assert set(parts["JobSpec"]["properties"]) == set(JobFields.model_fields) | {
        "groups",
        "min_available",
    }
    assert set(parts["ShortJob"]["properties"]) == set(JobFields.model_fields) | set(
        GroupFields.model_fields
    )
    assert parts["JobSpec"]["additionalProperties"] is False
    assert parts["Resources"]["additionalProperties"]["minimum"] == 1
    assert parts["Resources"]["propertyNames"]["pattern"].startswith("^[a-z]")
    assert parts["Constraint"]["additionalProperties"] is False
    json.dumps(schema)


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["busybox", "64Mi", "1e400", "main", "succeeded", "/in/x"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["name", "group", "path", "content", "from", "cpu", "until", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
_FIELDS = sorted({*JobFields.model_fields, *GroupFields.model_fields, "groups", "x"})


# The first text that is drawn has to read the tables of Unicode.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(_FIELDS), _VALUES, max_size=6), st.booleans())
def test_any_input_is_parsed_or_refused_with_faults(fields: dict[str, Any], whole: bool) -> None:
    try:
        result: Any = parse_job({**SHORT, **fields} if whole else fields).groups
    except InvalidSpec as refused:
        result = list(refused.faults)
    assert result
