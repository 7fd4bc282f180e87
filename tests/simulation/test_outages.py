"""Outages in full length, in virtual time: no cell is lost, and nothing fails or is run again."""

import os

import pytest

from controlplane.queries.sql import rows
from tests.simulation.outages import OUTAGES, TASKS, Outage, OutageFault, OutageWorld
from tests.simulation.running import run_world

# A simulation commits.
pytestmark = pytest.mark.django_db(transaction=True)

BASE = int(os.environ["SIMULATION_BASE"])
EXCLUSIVE_TASKS = 20
ENDS = {("lease_over", "preemption"), ("refused", "")}
IN_FULL = ("control plane for 10 min", "inbox for 5 min", "broker for 5 min")


def simulate(world: OutageWorld, tasks: int = TASKS) -> OutageFault:
    """What was seen of the outage; all that must always be true was so."""
    fault = OutageFault(world)
    outcome = run_world(world, lambda: fault)
    assert not outcome.failure, outcome.report()
    assert len(fault.running) == tasks, "the outage began before all of them ran"
    assert rows("SELECT kind, subject FROM controlplane_alert WHERE kind = 'cell_lost'") == []
    return fault


def check_outage(outage: Outage, seed: int) -> None:
    """Each task began once and ended with its result, and no budget was charged."""
    world = OutageWorld(seed, outage)
    fault = simulate(world)
    assert {seen.uid for seen in world.witness.all()} == fault.running
    assert rows("SELECT state, count(*)::int FROM controlplane_attempt GROUP BY 1") == [(4, TASKS)]
    assert rows("SELECT count(*)::int FROM controlplane_task WHERE preemption_count > 0") == [(0,)]


@pytest.mark.parametrize("outage", OUTAGES.values(), ids=OUTAGES)
def test_an_outage_loses_no_cell_and_fails_no_task(outage: Outage) -> None:
    check_outage(outage, BASE)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(BASE + 1, BASE + 10))
@pytest.mark.parametrize("outage", OUTAGES.values(), ids=OUTAGES)
def test_many_outages_lose_no_cell_and_fail_no_task(outage: Outage, seed: int) -> None:
    check_outage(outage, seed)


@pytest.mark.parametrize("name", IN_FULL)
def test_exclusive_attempts_ended_by_the_guard_count_as_preemptions(name: str) -> None:
    world = OutageWorld(BASE, OUTAGES[name], tasks=EXCLUSIVE_TASKS, exclusive=True)
    fault = simulate(world, EXCLUSIVE_TASKS)
    ended = rows("SELECT reason, charged FROM controlplane_attempt WHERE state <> 4 ORDER BY uid")
    # No program pays for it, nor for what a cell refuses that has just reported again.
    assert {(reason, charged) for reason, charged in ended} <= ENDS
    # Whose program came to its end before the guard came is not ended by it.
    well = rows(
        "SELECT count(*) FROM controlplane_attempt WHERE state = 4 AND uid = ANY(%s::uuid[])",
        [sorted(fault.running)],
    )[0][0]
    by_guard = len([reason for reason, _ in ended if reason == "lease_over"])
    assert by_guard == EXCLUSIVE_TASKS - well
    assert by_guard > well
    assert fault.running < {seen.uid for seen in world.witness.all()}
