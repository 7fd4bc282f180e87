"""Orders are sealed to the cell, except for cells of the version before sealing."""

import base64
import json

import pytest

from controlplane.contract.messages.orders import Orders
from controlplane.contract.wire.envelope import SEALED_SINCE, VERSION
from controlplane.models import Cell
from tests.integration.loop.conftest import FakeCell, Loop


def texts_to(loop: Loop, cell: FakeCell) -> list[str]:
    """The envelopes in the queue of a cell, as a reader of Redis finds them."""
    queue = f"cell.{cell.name}.{cell.incarnation}"
    bodies = [json.loads(message)["body"] for name, message in loop.wire.sent if name == queue]
    return [json.loads(base64.b64decode(body))[0][0] for body in bodies]


def test_order_shows_nothing_of_its_job(loop: Loop) -> None:
    cell = loop.cell()
    loop.submit(name="hidden-name", command=["hidden-command"], env={"A": "hidden-value"})
    loop.place()
    assert [run.task_index for o in cell.orders() if isinstance(o, Orders) for run in o.runs] == [0]
    texts = texts_to(loop, cell)
    assert texts
    assert "hidden" not in "".join(texts)


@pytest.mark.parametrize("version", [SEALED_SINCE - 1, VERSION])
def test_version_that_a_cell_registered_decides_how_it_gets_orders(
    loop: Loop, version: int
) -> None:
    cell = loop.cell()
    Cell.objects.update(versions={"contract": str(version)})
    loop.submit(name="job-name")
    loop.place()
    last = json.loads(texts_to(loop, cell)[-1])
    assert last["v"] == version
    assert ("job-name" in last["payload"]) == (version < SEALED_SINCE)
