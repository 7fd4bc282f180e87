"""The simulation or a scenario finds planted mistakes: some in each run, in the long suite all."""

import os
from zlib import crc32

import pytest

from tests.mutations.catalogue import Mutation
from tests.mutations.running import (
    MUTATIONS,
    ROOT,
    first_failing_seed,
    is_found_by_scenario,
    mutate,
    seeds_for,
)
from tests.simulation.running import run_seed

AT_ONCE = 5
# Rotates with the seeds of the run, which are printed in its head.
FIRST = crc32(os.environ["SIMULATION_BASE"].encode()) % len(MUTATIONS)
ROTATED = [*MUTATIONS[FIRST:], *MUTATIONS[:FIRST]]


def names(mutation: Mutation) -> str:
    return mutation.name


def find(mutation: Mutation) -> None:
    unseen = f"{mutation.file} may have this mistake unseen: {mutation.breaks}"
    if mutation.scenario:
        assert is_found_by_scenario(mutation), unseen
        return  # without the mistake, the suite of scenarios runs it
    seed = first_failing_seed(mutation, seeds_for(mutation))
    assert seed is not None, unseen
    # It fails for the mistake: without it, all is well.
    assert run_seed(seed).failure == ""


@pytest.mark.parametrize("mutation", MUTATIONS, ids=names)
def test_every_mutation_applies_to_its_file(mutation: Mutation) -> None:
    assert mutate((ROOT / mutation.file).read_text(), mutation)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("mutation", ROTATED[:AT_ONCE], ids=names)
def test_sampled_mutations_are_detected(mutation: Mutation) -> None:
    find(mutation)


@pytest.mark.soak
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("mutation", ROTATED[AT_ONCE:], ids=names)
def test_remaining_mutations_are_detected(mutation: Mutation) -> None:
    find(mutation)
