"""Tokens of a pool and named resources of a cell: counted where they belong, and nowhere else."""

from controlplane.models import Cell, Pool
from controlplane.queries.integrity.invariants import check_all
from tests.integration.loop.conftest import Loop

SMALL = {"cpu": 0.1, "memory": "64Mi"}


def test_pool_tokens_do_not_count_as_cell_resources(loop: Loop) -> None:
    Pool.objects.update(tokens={"licence": 3})
    loop.cell("cell-1")
    loop.cell("cell-2")
    job = loop.submit(replicas=4, resources={**SMALL, "licence": 1})
    loop.place()
    assert sorted(loop.states(job)) == ["ASSIGNED"] * 3 + ["PENDING"]
    assert check_all() == []


def test_named_resource_without_a_pool_token_is_a_cell_resource(loop: Loop) -> None:
    loop.cell("cell-1")
    Cell.objects.update(capacity={"cpu_millis": 4000, "memory_mib": 4096, "licence": 3})
    job = loop.submit(replicas=4, resources={**SMALL, "licence": 1})
    loop.place()
    assert sorted(loop.states(job)) == ["ASSIGNED"] * 3 + ["PENDING"]
    assert check_all() == []
    Cell.objects.update(capacity={"cpu_millis": 4000, "memory_mib": 4096, "licence": 2})
    [violation] = check_all()
    assert "3 of 2 licence are in use" in violation.text
