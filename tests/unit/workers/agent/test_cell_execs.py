"""Orders to start programs of users: passed on with the time that is left to claim them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.contract.messages.orders import ExecOrder, Orders
from tests.harness.cell_bench import Bench


class Starter:
    """Keeps what it must begin."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, float]] = []

    def begin(self, order: ExecOrder, seconds: float) -> None:
        self.begun.append((order.session, seconds))

    def close(self) -> None:
        return


@pytest.fixture
def starter() -> Starter:
    return Starter()


@pytest.fixture
def bench(tmp_path: Path, starter: Starter) -> Iterator[Bench]:
    bench = Bench(tmp_path, ahead=-3600.0)
    bench.cell.execs = starter
    yield bench
    bench.close()


def order(session: str, expires: float) -> Orders:
    return Orders(execs=(ExecOrder("u", session, ("true",), False, True, expires),))


def server_time(bench: Bench) -> float:
    found = bench.cell.lease.server_time(bench.now)
    assert found is not None
    return found


def test_order_is_passed_on_with_the_time_that_is_left(bench: Bench, starter: Starter) -> None:
    bench.accept()
    bench.deliver(order("s", server_time(bench) + 20.0).body())
    assert starter.begun == [("s", pytest.approx(20.0))]


def test_order_before_the_registration_is_dropped(bench: Bench, starter: Starter) -> None:
    bench.deliver(order("s", 1e12).body())
    bench.accept()
    assert starter.begun == []


def test_order_to_a_leaving_cell_is_dropped(bench: Bench, starter: Starter) -> None:
    bench.accept()
    bench.cell.leave(bench.moment, expected_seconds=0)
    bench.deliver(order("s", 1e12).body())
    assert starter.begun == []


def test_cell_without_sessions_ignores_the_order(bench: Bench, starter: Starter) -> None:
    bench.accept()
    bench.cell.execs = None
    bench.deliver(order("s", 1e12).body())
    assert starter.begun == []
