"""Hypothesis plays everybody at once, on PostgreSQL, against a small model of what must follow."""

import os

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.integration.loop.machine import Course

# Drawn from the sources (tests/harness/drawn.py) and printed; SIMULATION_BASE sets another base.
BASE = int(os.environ["SIMULATION_BASE"])
AT_ONCE, STEPS = 12, 40
IN_TEST, IN_SOAK = 4, 150

# A course commits.
pytestmark = pytest.mark.django_db(transaction=True)


def play(number: int, *, examples: int, steps: int) -> None:
    """So many courses from the seed `number` on; the shortest that fails is printed."""
    run_state_machine_as_test(
        seed(number)(type("Course", (Course,), {})),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            database=None,
            deadline=None,
            print_blob=True,
            phases=(Phase.generate, Phase.shrink),
            verbosity=Verbosity.normal,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("number", range(BASE, BASE + IN_TEST))
def test_random_histories_match_the_model(number: int) -> None:
    play(number, examples=AT_ONCE, steps=STEPS)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(BASE + IN_TEST, BASE + IN_SOAK))
def test_long_random_histories_match_the_model(number: int) -> None:
    play(number, examples=AT_ONCE * 2, steps=STEPS * 2)
