"""The enrolment of cells over the API: shown to all users, changed by operators."""

from collections.abc import Callable
from typing import Any

import pytest

from controlplane import clock
from controlplane.commands.cells.operate import enroll_cell
from controlplane.commands.tenancy.pools import put_pool
from controlplane.models import AuditLine, Cell
from tests.integration.api.conftest import Caller, check_described


def test_operator_changes_the_enrolment(operator: Caller, make_cell: Callable[..., Cell]) -> None:
    make_cell()
    put_pool(name="gpu", changes={})
    labels, ceiling = {"node/zone": "a"}, {"cpu": 1.5, "memory": "1Gi", "licence": 2}
    body = {"name": "cell-1", "pool": "gpu", "node_labels": labels, "max_capacity": ceiling}
    answer = operator.put("/cells/cell-1", body)
    assert answer.status == 200
    check_described("Cell", answer.json)
    shown = answer.json
    assert (shown["pool"], shown["node_labels"], shown["labels"]) == ("gpu", labels, labels)
    assert shown["max_capacity"] == {"cpu": 1.5, "memory_mib": 1024, "licence": 2}
    assert shown["capacity"] == {"cpu": 1.5, "memory_mib": 1024, "disk_mib": 0}
    assert shown["mismatch"] == (
        "it reports a capacity of 2 cores, but is enrolled with at most 1.5 cores; it reports a"
        " capacity of 2048 MiB of memory, but is enrolled with at most 1024 MiB of memory"
    )
    assert AuditLine.objects.get(action="change.cell").text == (
        "pool: default -> gpu; node_labels: none -> node/zone=a; max_capacity: none ->"
        " cpu=1.5, licence=2, memory=1Gi"
    )
    # Omitted fields and null keep the values.
    again = operator.put("/cells/cell-1", {"pool": None, "max_capacity": {}})
    assert (again.json["pool"], again.json["node_labels"]) == ("gpu", labels)
    assert (again.json["max_capacity"], again.json["mismatch"]) == ({}, "")
    assert (again.json["tags"], again.json["fixed_tags"]) == ([], ["*"])
    assert operator.get("/cells/cell-1").json == again.json
    tagged = operator.put("/cells/cell-1", {"fixed_tags": ["quiet", "ssd?"]}).json
    assert (tagged["tags"], tagged["fixed_tags"]) == (["quiet", "ssd?"], ["quiet", "ssd?"])


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"pool": "third"}, "pool"),
        ({"pool": 1}, "pool"),
        ({"node_labels": {"zone": "a"}}, "node_labels"),
        ({"node_labels": {"node/zone": 1}}, "node_labels"),
        ({"node_labels": {f"node/{number}": "x" for number in range(65)}}, "node_labels"),
        ({"max_capacity": {"cpu": -1}}, "max_capacity.cpu"),
        ({"fixed_tags": ["a?", "a"]}, "fixed_tags"),
        ({"fixed_tags": ["a", "*"]}, "fixed_tags"),
        ({"fixed_tags": ["a b"]}, "fixed_tags[0]"),
        ({"fixed_tags": "quiet"}, "fixed_tags"),
        ({"fixed_tags": [f"t{number}" for number in range(33)]}, "fixed_tags"),
        ({"name": "cell-2"}, "name"),
        ({"state": "READY"}, "state"),
    ],
)
def test_invalid_enrolment_changes_nothing(
    operator: Caller, make_cell: Callable[..., Cell], body: dict[str, Any], field: str
) -> None:
    make_cell()
    before = Cell.objects.values().get()
    answer = operator.put("/cells/cell-1", body)
    assert answer.status == 422
    assert [name.split(".node/")[0] for name in answer.faults] == [field]
    assert Cell.objects.values().get() == before


def test_enrolment_is_changed_by_operators_and_of_existing_cells_only(
    submitter: Caller, operator: Caller, anonymous: Caller
) -> None:
    enroll_cell(name="cell-1", now=clock.now())
    refused = submitter.put("/cells/cell-1", {"node_labels": {"node/a": "b"}})
    assert (refused.status, refused.json["detail"]) == (
        403,
        "the request needs a token with the role operator;"
        " this token of ann has the role submitter",
    )
    assert anonymous.put("/cells/cell-1", {"node_labels": {"node/a": "b"}}).status == 401
    assert Cell.objects.get().node_labels == {}
    assert operator.put("/cells/cell-2", {"pool": "default"}).status == 404
