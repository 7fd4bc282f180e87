"""`manage.py check_invariants` on a database with a whole simulated life in it."""

from io import StringIO

import pytest
from django.core.management import call_command

from controlplane.queries.sql import rows
from tests.simulation.world import World


@pytest.mark.django_db(transaction=True)
def test_invariants_hold_after_a_simulation() -> None:
    world = World(seed=2)
    with world.installed():
        world.run(healed_at=60.0, heal=lambda: None)
    assert rows("SELECT count(*) FROM controlplane_attempt")[0][0] > 0
    output = StringIO()
    call_command("check_invariants", stdout=output)
    assert "invariants hold" in output.getvalue()
