"""What can never run is refused at submission, with one statement if all is satisfiable."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane import clock
from controlplane.domain.jobs.satisfiability import AdmissionPool, find_unsatisfiable
from controlplane.models import Cell, Domain, Job, Pool, Project, Quota, Shape
from controlplane.queries.jobs.submission import (
    capacity_shapes,
    find_offered_cells,
    load_submission_facts,
    precheck_capacity,
)
from controlplane.spec import parse_job
from tests.harness.domain.facts import NOW
from tests.integration.api.conftest import Caller

MakeCell = Callable[..., Cell]
JOB: dict[str, Any] = {"name": "a", "image": "busybox"}


def offer(make_cell: MakeCell, name: str, tags: tuple[str, ...] = (), **labels: str) -> Cell:
    cell = make_cell(name)
    cell.labels, cell.tags = labels, list(tags)
    cell.save()
    return cell


def statements_of(*bodies: dict[str, Any], owner_id: int) -> int:
    """Return the statements that load the facts of a submission, beside pools and projects."""
    now = clock.now()  # the database's, by a statement
    specs = [parse_job(body) for body in bodies]
    with CaptureQueriesContext(connection) as captured:
        load_submission_facts(specs, owner_id=owner_id, now=now)
    return len(captured) - 2


# ------------------------------------------------------------------------------ what is taken


def test_shape_stores_resources_constraints_and_placement_tags(submitter: Caller) -> None:
    constraint = {"key": "zone", "op": "IN", "values": ["a", "b"], "required": False}
    groups = [
        {"name": "x", "image": "busybox", "resources": {"gpu": 2, "licence": 3, "memory": "1Gi"}},
        {"name": "y", "image": "busybox", "constraints": [], "placement_tags": ["own"]},
    ]
    answer = submitter.post(
        "/jobs",
        {
            "name": "a",
            "groups": groups,
            "constraints": [constraint],
            "placement_tags": ["quiet", "a"],
        },
    )
    assert answer.status == 201
    x, y = Job.objects.get().groups.order_by("position")
    assert x.resources == {"cpu_millis": 500, "memory_mib": 1024, "gpu": 2, "licence": 3}
    shapes = [Shape.objects.get(pk=group.shape_id) for group in (x, y)]
    assert [shape.placement_tags for shape in shapes] == [["a", "quiet"], ["own"]]
    assert [shape.constraints for shape in shapes] == [[{**constraint, "op": "in"}], []]
    assert shapes[0].resources == x.resources


def test_gang_stores_its_group_by_label(submitter: Caller) -> None:
    assert submitter.post("/jobs", {**JOB, "coscheduled": True, "group_by": "zone"}).status == 201
    assert Job.objects.get().group_by == "zone"


def test_precheck_and_limits_take_two_statements_for_a_plain_job(
    submitter: Caller, make_cell: MakeCell
) -> None:
    make_cell()
    owner = submitter.user.pk
    assert statements_of(JOB, owner_id=owner) == 2
    assert statements_of({**JOB, "allow_unsatisfiable": True}, owner_id=owner) == 1
    assert statements_of(*([JOB] * 50), owner_id=owner) == 2
    large, secret = {"resources": {"cpu": 99}}, {"secrets": [{"name": "s", "env": "S"}]}
    assert statements_of({**JOB, **large}, owner_id=owner) == 3
    assert statements_of({**JOB, **large, **secret, "guid": "g"}, owner_id=owner) == 5
    Quota.objects.create(project=Project.objects.get(), running_tasks=1)
    assert statements_of(JOB, owner_id=owner) == 2
    constrained = {**JOB, "constraints": [{"key": "zone", "op": "not_exists"}]}
    assert statements_of(constrained, owner_id=owner) == 2
    assert statements_of({**JOB, "coscheduled": True}, owner_id=owner) == 2
    unmet = {**JOB, "constraints": [{"key": "zone", "op": "exists"}]}
    assert statements_of(unmet, owner_id=owner) == 2


# ------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("fields", "field", "detail"),
    [
        (
            {
                "constraints": [{"key": "zone", "op": "eq", "values": ["b"]}],
                "resources": {"cpu": 3},
            },
            "resources.cpu",
            "larger than every cell of the pool: in-b comes closest and lacks 1 of 3 cores",
        ),
        ({"resources": {"gpu": 1}}, "resources.gpu", "lacks 1 gpu"),
        ({"resources": {"licence": 1}}, "resources.licence", "lacks 1 licence"),
        ({"resources": {"token": 3}}, "resources.token", "0 used + 3 requested > 2 of the pool"),
    ],
)
def test_unsatisfiable_job_is_refused_unless_allowed(
    submitter: Caller, make_cell: MakeCell, fields: dict[str, Any], field: str, detail: str
) -> None:
    Pool.objects.update(tokens={"token": 2})
    assert submitter.post("/jobs", {**JOB, "resources": {"token": 2}}).status == 201
    offer(make_cell, "in-a", zone="a")
    offer(make_cell, "in-b", zone="b")
    offer(make_cell, "tagged", ("quiet",), zone="b")
    answer = submitter.post("/jobs", {**JOB, **fields})
    assert answer.status == 422
    assert list(answer.faults) == [field]
    assert detail in answer.faults[field]
    assert "allow_unsatisfiable: true takes the job anyway" in answer.json["detail"]
    allowed = {**JOB, **fields, "allow_unsatisfiable": True}
    assert submitter.post("/jobs", allowed).status == 201


@pytest.mark.parametrize(
    "fields",
    [
        {"constraints": [{"key": "zone", "op": "eq", "values": ["c"]}]},
        {"placement_tags": ["loud"]},
        {"coscheduled": True, "replicas": 99},
        {"coscheduled": True, "group_by": "rack"},
    ],
)
def test_job_that_more_cells_could_satisfy_is_accepted(
    submitter: Caller, make_cell: MakeCell, fields: dict[str, Any]
) -> None:
    offer(make_cell, "in-a", zone="a")
    assert submitter.post("/jobs", {**JOB, **fields}).status == 201


def test_pool_that_never_had_a_cell_accepts_any_constraints(submitter: Caller) -> None:
    requirements = {"constraints": [{"key": "zone", "op": "exists"}], "placement_tags": ["x"]}
    assert submitter.post("/jobs", {**JOB, **requirements}).status == 201
    gang = {"coscheduled": True, "group_by": "zone", "replicas": 100}
    assert submitter.post("/jobs", {**JOB, **gang}).status == 201


def test_lost_cells_count_and_never_connected_cells_do_not(
    submitter: Caller, make_cell: MakeCell
) -> None:
    lost = offer(make_cell, "lost", zone="a")
    Cell.objects.update(state="LOST")
    never = offer(make_cell, "never", zone="b")
    never.capacity, never.task_types = {}, []
    never.save()
    in_zone = {"key": "zone", "op": "eq"}
    large = {**JOB, "resources": {"cpu": 99}}
    there = {**large, "constraints": [{**in_zone, "values": ["a"]}]}
    assert submitter.post("/jobs", there).status == 422
    gone = {**large, "constraints": [{**in_zone, "values": ["b"]}]}
    assert submitter.post("/jobs", gone).status == 201
    assert [cell.name for cell in find_offered_cells([lost.pool_id])[lost.pool_id]] == ["lost"]


@pytest.mark.parametrize("scope", ["user", "project", "domain"])
def test_request_above_a_quota_limit_is_refused_in_every_scope(
    submitter: Caller, operator: Caller, scope: str
) -> None:
    whose, named = {
        "user": (submitter.user, "ann"),
        "project": (Project.objects.get(), "default/default"),
        "domain": (Domain.objects.get(), "default"),
    }[scope]
    Quota.objects.create(**{scope: whose}, resources={"cpu_millis": 1000}, running_tasks=2)
    large = {**JOB, "resources": {"cpu": 2}}
    answer = submitter.post("/jobs", large)
    assert answer.faults["resources.cpu"].startswith(
        f"quota of {scope} {named}: 0 cores used + 2 cores requested > 1 core allowed"
    )
    assert operator.post("/jobs", large).status == (201 if scope == "user" else 422)
    assert submitter.post("/jobs", {**JOB, "replicas": 9}).status == 201
    gang = {**JOB, "coscheduled": True, "replicas": 3, "resources": {"cpu": 0.1}}
    assert "0 running tasks + 3 requested > 2" in submitter.post("/jobs", gang).faults["replicas"]


def test_batch_names_the_fault_of_each_job(submitter: Caller, make_cell: MakeCell) -> None:
    offer(make_cell, "in-a", zone="a")
    wrong = {**JOB, "resources": {"gpu": 3}}
    answer = submitter.post("/jobs:batch", [JOB, wrong, {**JOB, "resources": {"cpu": 9}}])
    assert answer.status == 422
    text = json.dumps(answer.json)
    assert "lacks 3 gpu" in text
    assert "lacks 7 of 9 cores" in text
    assert not Job.objects.exists()


# ------------------------------------------------------------------------------ one and the same

TAGS = st.lists(st.sampled_from(["quiet", "ssd", "own"]), unique=True, max_size=2)
# Beyond 2**53 not every integer is a float.
LARGE = ["9007199254740992", "9007199254740993", "9007199254740993.5"]
NUMBER = st.sampled_from(["1", "-1.5", "+64", "64.0", "007", *LARGE])
TEXT = st.sampled_from(["a", "b", "", "64", "1.", "x.1", LARGE[1]])
CONSTRAINTS = st.lists(
    st.builds(
        lambda key, op, number, texts, required: {
            "key": key,
            "op": op,
            "values": {"in": texts, "eq": texts[:1], "ne": texts[:1]}.get(op, number),
            "required": required,
        },
        st.sampled_from(["zone", "gb", "rack"]),
        st.sampled_from(["eq", "ne", "in", "gt", "ge", "lt", "le"]),
        NUMBER.map(lambda number: [number]),
        st.lists(TEXT, min_size=1, max_size=3),
        st.booleans(),
    )
    | st.builds(
        lambda key, op: {"key": key, "op": op},
        st.sampled_from(["zone", "gb", "rack"]),
        st.sampled_from(["exists", "NOT_EXISTS"]),
    ),
    max_size=2,
)
SHAPES = st.fixed_dictionaries(
    {
        "task_type": st.sampled_from(["container", "process"]),
        "placement_tags": TAGS,
        "constraints": CONSTRAINTS,
        "resources": st.fixed_dictionaries(
            {"cpu": st.sampled_from([1, 2, 4]), "memory": st.sampled_from(["64Mi", "4Gi"])},
            optional={"gpu": st.sampled_from([0, 1, 2]), "licence": st.sampled_from([1, 2])},
        ),
    }
)


@pytest.fixture
def mixed(make_cell: MakeCell) -> list[Cell]:
    """Cells that differ in everything that is compared."""
    made = [
        make_cell("plain"),
        make_cell("large", cpu_millis=4000, memory_mib=8192),
        make_cell("gpu", gpu=2),
        make_cell("quiet", gpu=1, licence=1),
        make_cell("process", cpu_millis=4000, licence=2),
    ]
    made[0].labels = {"zone": "a", "gb": "64", "rack": LARGE[1]}
    made[1].labels = {"zone": "b", "gb": "-2", "rack": LARGE[0]}
    made[2].labels = {"zone": "", "gb": "1."}
    made[3].labels = {"gb": "٣"}
    made[3].tags = ["quiet", "ssd?"]
    made[2].tags = ["own?"]
    made[4].task_types = ["process"]
    for cell in made:
        cell.save()
    return made


@settings(
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(SHAPES)
def test_precheck_statement_agrees_with_the_domain(
    mixed: list[Cell], fields: dict[str, Any]
) -> None:
    """The statement gives an alarm if and only if the domain refuses the job."""
    by_type: dict[str, Any] = {
        "container": {"image": "busybox"},
        "process": {"command": ["true"]},
    }
    spec = parse_job({"name": "a", **by_type[fields["task_type"]], **fields})
    pool_id = mixed[0].pool_id
    pool = AdmissionPool(pool_id, "default", cells=find_offered_cells([pool_id])[pool_id])
    precheck = precheck_capacity(capacity_shapes(spec, pool))
    [refused] = find_unsatisfiable([(spec, ())], pool, now=NOW)
    assert bool(precheck) is bool(refused)
