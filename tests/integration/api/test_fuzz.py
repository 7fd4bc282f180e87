"""Whatever the model takes, the tables take: no limit of a column is met before one of ours."""

from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.integration.api.conftest import Caller

SECONDS = st.floats(0, 40_000_000) | st.integers(-1, 40_000_000)
COUNT = st.integers(-1, 2_000_000) | st.integers()
TEXT = st.text(max_size=20)

FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "guid": TEXT,
        "replicas": st.integers(0, 20),
        "min_available": st.integers(0, 20),
        "max_task_failures": COUNT,
        "scheduling_timeout_seconds": SECONDS,
        "timeout_seconds": SECONDS,
        "stop_grace_seconds": SECONDS,
        "max_pids": COUNT,
        "ttl_seconds_after_finished": COUNT,
        "start_after": st.datetimes().map(lambda at: at.isoformat(timespec="seconds") + "Z"),
        "retries": st.fixed_dictionaries({}, optional={"failure": COUNT, "system": COUNT}),
        "annotation": TEXT,
        "labels": st.dictionaries(TEXT, TEXT, max_size=3),
        "env": st.dictionaries(TEXT, TEXT, max_size=3),
        "command": st.lists(TEXT, max_size=3),
        "resources": st.fixed_dictionaries(
            {},
            optional={
                "cpu": st.floats(allow_nan=False, allow_infinity=False) | COUNT,
                "memory": COUNT,
                "disk": COUNT,
                "gpu": COUNT,
                "licence": COUNT,
                "cpus": TEXT | COUNT,
            },
        ),
        "coscheduled": st.booleans(),
        "group_by": TEXT,
        "placement_tags": st.lists(TEXT, max_size=3),
        "constraints": st.lists(
            st.fixed_dictionaries(
                {"key": st.sampled_from(["zone", "Zone/1"]) | TEXT},
                optional={
                    "op": st.sampled_from(["eq", "NE", "in", "exists", "gt", "Le", "like"]),
                    "values": st.lists(TEXT | st.integers().map(str), max_size=3),
                    "required": st.booleans(),
                },
            ),
            max_size=3,
        ),
        "inputs": st.lists(
            st.fixed_dictionaries({"path": TEXT.map(lambda t: f"/{t}"), "content": TEXT}),
            max_size=2,
        ),
    },
)
LARGEST: dict[str, Any] = {
    "guid": "x" * 255,
    "name": "x" * 63,
    "scheduling_timeout_seconds": 31_536_000,
    "start_after": "2100-01-01T00:00:00Z",
    "max_task_failures": 1_000_000,
    "retries": {"failure": 1_000, "preemption": 1_000, "system": 1_000},
    "resources": {
        "cpu": 100_000,
        "memory": "1Pi",
        "disk": "1Pi",
        "gpu": 1_000_000,
        **{f"r{n:062}": 1_000_000 for n in range(16)},
    },
    "coscheduled": True,
    "group_by": "x" * 63,
    "placement_tags": [f"t{n:062}" for n in range(32)],
    "constraints": [
        {"key": "x" * 63, "op": "not_exists"},
        *[{"key": f"x{n:062}", "op": "in", "values": ["€" * 255] * 64} for n in range(31)],
    ],
    "annotation": "€" * 16_384,
    "ttl_seconds_after_finished": 7_776_000,
}


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(FIELDS)
@example(LARGEST)
@example({"timeout_seconds": 0.001, "scheduling_timeout_seconds": 0.001, "stop_grace_seconds": 0})
def test_any_job_is_created_or_refused_without_a_server_error(
    submitter: Caller, fields: dict[str, Any]
) -> None:
    answer = submitter.post("/jobs", {"name": "a", "image": "busybox", **fields})
    assert answer.status in (200, 201, 409, 422), answer.content
    if answer.status == 422:
        assert answer.faults


def test_largest_job_is_accepted(submitter: Caller) -> None:
    assert submitter.post("/jobs", {"image": "busybox", **LARGEST}).status == 201


ONE_OFFS = st.fixed_dictionaries(
    {
        "guid": st.from_regex(r"[A-Za-z0-9_-]{1,9}", fullmatch=True) | TEXT,
        "domain": st.from_regex(r"[A-Za-z0-9._-]{1,9}", fullmatch=True) | TEXT,
        "definition": FIELDS,
    }
)


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(ONE_OFFS)
@example({"guid": "x" * 255, "domain": "x" * 255, "definition": {"annotation": "€" * 16_384}})
@example({"guid": "-", "domain": ".", "definition": {"retries": {"failure": 0}}})
def test_a_one_off_task_is_created_or_refused_and_found_by_its_guid(
    submitter: Caller, body: dict[str, Any]
) -> None:
    definition = {"image": "busybox", **body["definition"]}
    answer = submitter.post("/tasks", {**body, "definition": definition})
    assert answer.status in (201, 409, 422), answer.content
    if answer.status == 422:
        assert all(field in body or field.startswith("definition.") for field in answer.faults)
    else:
        assert submitter.get(f"/tasks/{body['guid']}").json["guid"] == body["guid"]
