"""Orders of one cell are divided into messages of bounded size, and none is left out."""

from controlplane.contract.codec import compact_json
from controlplane.contract.messages.orders import (
    MAX_ORDER_BYTES,
    GroupSpec,
    RunAttempt,
    StopAttempt,
)
from controlplane.outbox.cells import split_orders


def spec(number: int, chars: int) -> GroupSpec:
    return GroupSpec(number, 1, "job", "group", 1, command=("sh", "-c", "x" * chars))


def run(number: int, spec_id: int) -> RunAttempt:
    return RunAttempt(f"{number:036d}", spec_id, number, 0, 1, 1_700_000_000.5)


def test_orders_are_split_into_messages_of_bounded_size_with_their_specs() -> None:
    specs = {number: spec(number, 200 * number) for number in range(60)}
    runs = [run(number, number % 60) for number in range(2_000)]
    stops = [StopAttempt(f"{number:036d}", "cancelled") for number in range(2_000)]
    messages = list(split_orders(runs, stops, specs))
    assert max(len(compact_json(orders.body())) for orders in messages) <= MAX_ORDER_BYTES
    assert [item for orders in messages for item in orders.runs] == runs
    assert [item for orders in messages for item in orders.stops] == stops
    for orders in messages:
        ids = [item.id for item in orders.specs]
        assert sorted(ids) == sorted({item.spec_id for item in orders.runs})


def test_spec_above_the_limit_is_sent_alone() -> None:
    specs = {1: spec(1, MAX_ORDER_BYTES), 2: spec(2, 10)}
    messages = list(split_orders([run(1, 2), run(2, 1), run(3, 2)], (), specs))
    assert [[item.spec_id for item in orders.runs] for orders in messages] == [[2], [1], [2]]


def test_runs_without_a_spec_are_left_out() -> None:
    [orders] = split_orders([run(1, 7), run(2, 1)], (), {1: spec(1, 10)})
    assert [item.spec_id for item in orders.runs] == [1]
