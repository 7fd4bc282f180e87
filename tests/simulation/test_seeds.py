"""Random simulations: whatever is lost, late or killed, what must always be true is."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest
from django.db import connection

from tests.simulation.gang_bench import run_bench
from tests.simulation.running import run_seed

# Drawn from the sources (tests/harness/drawn.py) and printed; SIMULATION_BASE sets another base.
BASE = int(os.environ["SIMULATION_BASE"])
AT_ONCE = 10
IN_TEST, IN_SOAK = 300, 5_000

# A simulation commits.
pytestmark = pytest.mark.django_db(transaction=True)


def simulate(seeds: range) -> None:
    failures = [outcome.report() for seed in seeds if (outcome := run_seed(seed)).failure]
    assert not failures, "\n\n".join(failures)


@pytest.mark.parametrize("first", range(BASE, BASE + IN_TEST, AT_ONCE))
def test_invariants_hold_for_random_seeds(first: int) -> None:
    simulate(range(first, first + AT_ONCE))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(BASE + IN_TEST, BASE + IN_SOAK, 10 * AT_ONCE))
def test_invariants_hold_for_many_random_seeds(first: int) -> None:
    simulate(range(first, first + 10 * AT_ONCE))


def test_gangs_of_a_hundred_are_never_started_partially() -> None:
    outcome = run_bench(BASE)
    assert not outcome.failure, outcome.report()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(BASE + 1, BASE + 10))
def test_invariants_hold_for_many_runs_of_large_gangs(seed: int) -> None:
    outcome = run_bench(seed)
    assert not outcome.failure, outcome.report()


@pytest.mark.parametrize("seed", [3, BASE])
def test_same_seed_reproduces_the_same_run(seed: int) -> None:
    first, second = run_seed(seed), run_seed(seed)
    assert (first.digest, first.trace) == (second.digest, second.trace)


# Rows of one group that differ in the cell that they prefer took another order under other plans.
OF_MIXED_ROWS = 5794196000

# Rows of one group whose tasks have two shapes, since a retry rule increased the request of some.
OF_GROWN_REQUESTS = 6787330000

# Callbacks that are due at once were tried in another order under other plans.
OF_MANY_CALLBACKS = 8526958000

# Ticks that stopped after seconds of the real clock stopped elsewhere in a stalled process.
OF_MANY_STALLS = 896987004


@pytest.mark.parametrize("seed", [OF_MIXED_ROWS, OF_GROWN_REQUESTS, OF_MANY_CALLBACKS, BASE])
def test_a_run_does_not_depend_on_the_plans_of_the_database(seed: int) -> None:
    first = run_seed(seed)
    with without_plans("nestloop", "indexscan", "indexonlyscan"):
        second = run_seed(seed)
    assert (first.digest, first.trace) == (second.digest, second.trace)


@pytest.mark.parametrize("seed", [OF_MANY_STALLS, BASE])
def test_a_run_does_not_depend_on_the_speed_of_the_machine(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_seed(seed)
    rng, passed, monotonic = Random(seed), [0.0], time.monotonic

    def stalling() -> float:
        passed[0] += 6.0 if rng.random() < 0.4 else 0.0
        return monotonic() + passed[0]

    monkeypatch.setattr(time, "monotonic", stalling)
    second = run_seed(seed)
    assert (first.digest, first.trace) == (second.digest, second.trace)


@contextmanager
def without_plans(*kinds: str) -> Iterator[None]:
    with connection.cursor() as cursor:
        for kind in kinds:
            cursor.execute(f"SET enable_{kind} = off")
        try:
            yield
        finally:
            for kind in kinds:
                cursor.execute(f"RESET enable_{kind}")
