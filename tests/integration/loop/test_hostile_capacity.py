"""A cell that registers many resources, which no task requests, costs the others little."""

from random import Random

from controlplane.contract.messages.reports import MAX_RESOURCES, Register
from controlplane.models import Cell, PoolSample
from tests.integration.loop.conftest import FakeCell, Loop


def many_names(count: int) -> dict[str, int]:
    """Resources with long names and with amounts without a common divisor."""
    dice = Random(count)
    names = [f"h-{n}-" + "x" * 240 for n in range(count)]
    return {name: dice.randrange(1 << 52, 1 << 53) | 1 for name in names}


def test_registration_with_too_many_resources_is_refused(loop: Loop) -> None:
    """Three cells of a pool of 300 with a thousand resources each made a pass last 14 seconds."""
    capacity = {"cpu_millis": 1, **many_names(MAX_RESOURCES)}
    hostile = FakeCell(loop, "hostile", capacity)
    hostile.send(Register(capacity, drivers=("docker",), task_types=("container",)).body())
    assert hostile.orders() == []
    assert Cell.objects.get(name="hostile").capacity == {}


def test_sample_of_a_pool_stores_few_bytes_of_what_no_task_requests(loop: Loop) -> None:
    """A sample is written every 15 seconds for each pool, and kept for a day."""
    loop.cell()
    FakeCell(loop, "hostile", {"cpu_millis": 1, **many_names(MAX_RESOURCES - 1)}).register()
    loop.submit()
    loop.place()
    loop.converge()
    assert len(str(PoolSample.objects.latest("pk").capacity)) < 10_000
