"""`manage.py check_invariants` on a database with a whole simulated life in it."""

from io import StringIO

import pytest
from django.core.management import call_command

from controlplane.queries.sql import execute, rows
from tests.simulation.world import World

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def lived() -> None:
    """Some jobs came and went."""
    world = World(seed=2)
    with world.installed():
        world.run(healed_at=60.0, heal=lambda: None)
    assert rows("SELECT count(*) FROM controlplane_attempt")[0][0] > 0


def check() -> tuple[int, str]:
    output = StringIO()
    try:
        call_command("check_invariants", stdout=output, stderr=StringIO())
    except SystemExit as ended:
        return int(ended.code or 0), output.getvalue()
    return 0, output.getvalue()


def test_a_clean_database_is_said_to_be_clean() -> None:
    code, said = check()
    assert code == 0
    assert "invariants hold" in said


PLANTED = {
    "INV-8": "UPDATE controlplane_task SET preemption_count = preemption_count + 1 WHERE id = %s",
    "INV-12": "UPDATE controlplane_attempt SET cell_id = 4711 WHERE task_id = %s",
    "INV-21": "UPDATE controlplane_task SET state = 6 WHERE state <> 6 AND id = %s",
    "INV-43": "UPDATE controlplane_transition SET reason = 'because' WHERE task_id = %s",
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_violation_planted_by_sql_is_listed_with_its_id(name: str) -> None:
    ((task_id,),) = rows("SELECT max(task_id) FROM controlplane_attempt WHERE state <> 6")
    assert execute(PLANTED[name], [task_id])
    code, said = check()
    assert code == 1
    assert name in said


def test_rows_of_a_deleted_job_are_found() -> None:
    ((job_id,),) = rows("SELECT max(id) FROM controlplane_job")
    execute("DELETE FROM controlplane_taskgroup WHERE job_id = %s", [job_id])
    execute("DELETE FROM controlplane_job WHERE id = %s", [job_id])
    code, said = check()
    assert code == 1
    assert f"there is no job {job_id}" in said
