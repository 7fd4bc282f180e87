"""Which orders a cell obeys: those that the control plane signed for its present incarnation."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.contract.messages.orders import Orders, RunAttempt
from controlplane.contract.wire import envelope, keys
from tests.harness.cell_bench import KEY, Bench, spec


@pytest.fixture
def ready(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    bench.accept()
    yield bench
    bench.close()


def order(bench: Bench, *, key: bytes | None = None, **head: Any) -> dict[str, Any]:
    """A valid order to start attempt "u", as its envelope's fields; `head` and `key` replace."""
    facts = {"cell": bench.cell.name, "incarnation": bench.cell.incarnation, "seq": 0, **head}
    run = RunAttempt("u", 1, 1, 0, 1, bench.now + 60)
    body = Orders((spec("sleep", "60"),), (run,)).body()
    signed_with = keys.mac_key(KEY, keys.TO_CELL) if key is None else key
    sealed: dict[str, Any] = json.loads(envelope.seal(signed_with, body=body, **facts))
    return sealed


def is_obeyed(bench: Bench, fields: dict[str, Any]) -> bool:
    bench.round(json.dumps(fields))
    return bench.engine.starts["u"] == 1


def test_a_signed_order_for_this_incarnation_is_obeyed(ready: Bench) -> None:
    assert is_obeyed(ready, order(ready))


@pytest.mark.parametrize(
    "key",
    [keys.mac_key(b"o" * 32, keys.TO_CELL), keys.mac_key(KEY, keys.TO_CONTROL), KEY, b""],
    ids=["of another cell", "of the other direction", "not derived", "empty"],
)
def test_an_order_signed_with_another_key_is_dropped(ready: Bench, key: bytes) -> None:
    assert not is_obeyed(ready, order(ready, key=key))
    assert is_obeyed(ready, order(ready))


@pytest.mark.parametrize("mac", ["", "0" * 63, "0" * 64, None])
def test_an_order_with_another_mac_is_dropped(ready: Bench, mac: str | None) -> None:
    assert not is_obeyed(ready, {**order(ready), "mac": mac})
    assert is_obeyed(ready, order(ready))


def test_an_order_without_a_mac_is_dropped(ready: Bench) -> None:
    fields = order(ready)
    del fields["mac"]
    assert not is_obeyed(ready, fields)


@pytest.mark.parametrize(
    ("field", "other"), [("cell", "b"), ("inc", "of the past"), ("seq", 1), ("v", 0)]
)
def test_an_order_whose_head_was_changed_is_dropped(
    ready: Bench, field: str, other: str | int
) -> None:
    """The head names this cell and incarnation only after the change; the MAC covers the head."""
    right = order(ready)
    heads: dict[str, dict[str, Any]] = {
        "cell": {"cell": other},
        "inc": {"incarnation": other},
        "seq": {"seq": other},
    }
    sealed = order(ready, **heads.get(field, {}))
    changed = {**sealed, field: right[field] if field in heads else other}
    assert changed != right
    assert not is_obeyed(ready, changed)
    assert is_obeyed(ready, right)


def test_an_order_whose_payload_was_changed_is_dropped(ready: Bench) -> None:
    fields = order(ready)
    assert '"sleep"' in fields["payload"]
    changed = {**fields, "payload": fields["payload"].replace('"sleep"', '"noop"')}
    assert not is_obeyed(ready, changed)


def test_a_signed_order_for_a_past_incarnation_is_dropped(ready: Bench) -> None:
    """Its attempt belongs to what the control plane has given up and may run elsewhere."""
    late = order(ready)
    ready.sync(0, draw_anew=True)
    ready.wait(10)
    ready.accept()
    assert ready.cell.incarnation != late["inc"]
    assert not is_obeyed(ready, late)
    assert is_obeyed(ready, order(ready))


def test_a_signed_order_for_another_cell_is_dropped(ready: Bench) -> None:
    """Also if its sender has the key of this one."""
    assert not is_obeyed(ready, order(ready, cell="b"))


def test_dropped_order_does_not_affect_others_of_the_same_round(ready: Bench) -> None:
    forged = json.dumps({**order(ready), "mac": "0" * 64})
    ready.round(forged, json.dumps(order(ready)), forged)
    assert ready.engine.starts["u"] == 1
