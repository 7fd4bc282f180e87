"""A cell that registers many resources, which no task requests, delays no placement of others."""

import time
from random import Random

import numpy as np

from controlplane.contract.messages.reports import MAX_NAMES
from controlplane.domain.placement.model.shares import capacity_ranks
from controlplane.models import PoolSample
from tests.integration.loop.conftest import FakeCell, Loop

CELLS = 100


def many_names(prefix: str) -> dict[str, int]:
    """As many resources as a cell may register, with amounts without a common divisor."""
    dice, names = Random(prefix), [f"{prefix}-{n}" for n in range(MAX_NAMES - 3)]
    return {name: dice.randrange(1 << 52, 1 << 53) | 1 for name in names}


def test_order_of_cells_by_capacity_is_fast_whatever_a_cell_registers() -> None:
    """Three cells of a pool of a hundred need a second; eight need twenty."""
    hostile = [list(many_names(str(n)).values()) for n in range(3)]
    size = len(hostile[0])
    capacity = np.zeros((1 + 3 * size, CELLS + 3), dtype=np.int64)
    capacity[0] = np.arange(1000, 1000 + CELLS + 3)
    for number, amounts in enumerate(hostile):
        capacity[1 + number * size : 1 + (number + 1) * size, CELLS + number] = amounts
    began = time.process_time()
    capacity_ranks(capacity)
    assert time.process_time() - began < 0.5


def test_sample_of_a_pool_does_not_store_what_no_task_requests(loop: Loop) -> None:
    """A sample is written every 15 seconds for each pool, and kept for a day."""
    loop.cell()
    names = {name + "x" * 240: amount for name, amount in many_names("h").items()}
    FakeCell(loop, "hostile", {"cpu_millis": 1, **names}).register()
    loop.submit()
    loop.place()
    loop.converge()
    assert len(str(PoolSample.objects.latest("pk").capacity)) < 10_000
