"""What a job requires of cells: resources of all kinds, constraints, tags; read or refused."""

from typing import Any

import pytest

from controlplane.domain.constraints import Operator
from controlplane.spec import parse_job, placing
from tests.unit.spec.test_parsing import faults_of, grouped, short


def wants(op: str, *values: Any) -> dict[str, Any]:
    return {"key": "zone", "op": op, "values": list(values)}


@pytest.mark.parametrize(
    ("fields", "field", "detail"),
    [
        ({"resources": {"gpu": -1}}, "resources.gpu", "must be at least 0"),
        ({"resources": {"gpu": 0.5}}, "resources.gpu", "must be a whole number"),
        ({"resources": {"licence": 0}}, "resources.licence", "must be at least 1"),
        ({"resources": {"licence": "1"}}, "resources.licence", "must be a whole number"),
        ({"resources": {"licence": True}}, "resources.licence", "must be a whole number"),
        ({"resources": {"Licence": 1}}, "resources.Licence", "must match ^[a-z]"),
        ({"resources": {"a\n": 1}}, "resources.a\n", "must match ^[a-z]"),
        ({"resources": {"cpu_millis": 1}}, "resources.cpu_millis", "use cpu"),
        ({"resources": {"memory_mib": 1}}, "resources.memory_mib", "use memory"),
        ({"resources": {f"r{n}": 1 for n in range(17)}}, "resources", "at most 16 named"),
        ({"group_by": "zone"}, "group_by", "only valid for a coscheduled job"),
        ({"group_by": "a b", "coscheduled": True}, "group_by", "must match"),
        ({"placement_tags": ["A"]}, "placement_tags[0]", "must match"),
        ({"placement_tags": ["a", "b", "a"]}, "placement_tags[2]", "named twice"),
        ({"placement_tags": [f"t{n}" for n in range(33)]}, "placement_tags", "at most 32"),
        ({"constraints": [wants("exists")] * 33}, "constraints", "at most 32 items"),
        ({"constraints": [{"op": "exists"}]}, "constraints[0].key", "is required"),
        ({"constraints": [{**wants("exists"), "key": "a b"}]}, "constraints[0].key", "must match"),
        ({"constraints": [wants("like", "x")]}, "constraints[0].op", "must be 'eq'"),
        ({"constraints": [wants("exists", "x")]}, "constraints[0].values", "must be empty"),
        ({"constraints": [wants("in")]}, "constraints[0].values", "at least one value"),
        ({"constraints": [wants("eq")]}, "constraints[0].values", "exactly one value for eq"),
        ({"constraints": [wants("ne", "a", "b")]}, "constraints[0].values", "exactly one value"),
        ({"constraints": [wants("gt")]}, "constraints[0].values", "exactly one value for gt"),
        ({"constraints": [wants("GT", "1e3")]}, "constraints[0].values[0]", "must be a number"),
        ({"constraints": [wants("le", "")]}, "constraints[0].values[0]", "must be a number"),
        ({"constraints": [wants("ge", 5)]}, "constraints[0].values[0]", "put it in quotes"),
    ],
)
def test_invalid_input_fault_has_field_and_limit(
    fields: dict[str, Any], field: str, detail: str
) -> None:
    found = faults_of(short(**fields))
    assert list(found) == [field]
    assert detail in found[field]


def test_named_resources_are_parsed_with_the_standard_ones() -> None:
    spec = parse_job(short(resources={"cpu": 1, "memory": "64Mi", "gpu": 2, "licence": 3}))
    assert spec.groups[0].resources.amounts() == {
        "cpu_millis": 1000,
        "memory_mib": 64,
        "gpu": 2,
        "licence": 3,
    }


def test_operators_are_case_insensitive() -> None:
    spec = parse_job(short(constraints=[wants("Not_Exists"), wants("GE", "-0.5")]))
    assert [item.op for item in spec.constraints] == ["not_exists", "ge"]


def test_constraints_and_tags_of_a_group_override_those_of_the_job() -> None:
    spec = parse_job(
        grouped(
            {"name": "x"},
            {"name": "y", "constraints": [wants("exists")], "placement_tags": []},
            constraints=[wants("eq", "a")],
            placement_tags=["t"],
        )
    )
    x, y = spec.groups
    assert [item.op for item in spec.constraints_of(x)] == ["eq"]
    assert [item.op for item in spec.constraints_of(y)] == ["exists"]
    assert (spec.tags_of(x), spec.tags_of(y)) == (["t"], [])
    top = parse_job(short(constraints=[wants("exists")], placement_tags=["t"]))
    assert top.constraints_of(top.groups[0]) == top.constraints
    assert top.tags_of(top.groups[0]) == ["t"]


def test_constraint_fault_of_a_group_is_reported_at_the_group() -> None:
    bad = {"constraints": [wants("exists"), wants("eq")], "placement_tags": ["t", "t"]}
    found = faults_of(grouped({"name": "x"}, {"name": "y", **bad}))
    assert set(found) == {"groups[1].constraints[1].values", "groups[1].placement_tags[1]"}


def test_operators_and_numbers_match_those_of_placement() -> None:
    assert list(placing.OPS) == [operator.value for operator in Operator]
    for text in ("1", "-1", "+0.5", "1.", ".5", "1e3", "", "x", "1 ", "٣", "1_0", "inf", "1\n"):
        found = (
            faults_of(short(constraints=[wants("gt", text)])) if not placing.is_number(text) else {}
        )
        assert bool(found) is not placing.is_number(text)
        if placing.is_number(text):
            assert parse_job(short(constraints=[wants("gt", text)]))
