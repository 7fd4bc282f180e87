"""Labels and tags on their way: from a cell's environment to its row, from a job to its retries."""

from pathlib import Path
from typing import Any

import pytest

from controlplane import clock
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.jobs.rerun import retry_job
from controlplane.contract.messages.orders import RegistrationResult
from controlplane.contract.wire.keys import encode_key
from controlplane.models import Cell, Job, Shape, TaskGroup
from tests.integration.loop.conftest import FakeCell, Loop
from workers.agent.registration import make_register
from workers.config import CellConfig


def register(cell: FakeCell, folder: Path, **environment: str) -> str:
    """Register the cell with this environment, and return the verdict."""
    key_file = folder / "key"
    key_file.write_text(encode_key(cell.key))
    key_file.chmod(0o600)
    config = CellConfig.from_env(
        {
            "CELLRUN_CELL_NAME": cell.name,
            "CELLRUN_CELL_KEY_FILE": str(key_file),
            "CELLRUN_CELL_DRIVER": "memory",
            "CELLRUN_CELL_CAPACITY": "cpu=4,memory=4Gi,disk=10Gi",
            "CELERY_BROKER_URL": "redis://127.0.0.1:1/0",
            "CELLRUN_CONTROL_URL": "http://127.0.0.1:1",
            "CELLRUN_INSTALLATION": "test",
            **environment,
        }
    )
    cell.send(make_register(config, []).body())
    return [order for order in cell.orders() if isinstance(order, RegistrationResult)][-1].verdict


def row_of(cell: FakeCell) -> Cell:
    return Cell.objects.get(name=cell.name)


def test_registration_replaces_labels_and_tags_of_a_cell(loop: Loop, tmp_path: Path) -> None:
    cell = FakeCell(loop, "cell-1", {})
    environment = {"CELLRUN_CELL_LABELS": "zone=a, gb=64", "CELLRUN_CELL_TAGS": "quiet, ssd?"}
    environment["CELLRUN_CELL_CAPACITY"] = "cpu=4,gpu=2,licence=3"
    assert register(cell, tmp_path, **environment) == "accepted"
    row = row_of(cell)
    assert (row.labels, row.tags) == ({"zone": "a", "gb": "64"}, ["quiet", "ssd?"])
    assert (row.capacity["gpu"], row.capacity["licence"]) == (2, 3)

    changed = {"CELLRUN_CELL_LABELS": "zone=b", "CELLRUN_CELL_TAGS": "ssd"}
    assert register(cell, tmp_path, **changed) == "accepted"
    row = row_of(cell)
    assert (row.incarnation, row.state) == ("one", "READY")
    assert (row.labels, row.tags) == ({"zone": "b"}, ["ssd"])
    assert "licence" not in row.capacity

    assert register(cell, tmp_path) == "accepted"
    assert (row_of(cell).labels, row_of(cell).tags) == ({}, [])


REQUIREMENTS: dict[str, Any] = {
    "constraints": [
        {"key": "zone", "op": "IN", "values": ["a", "b"]},
        {"key": "gb", "op": "ge", "values": ["32"], "required": False},
    ],
    "placement_tags": ["quiet", "ssd"],
    "resources": {"cpu": 0.1, "memory": "64Mi", "gpu": 1, "licence": 2},
}


def shapes_of(job: Job) -> list[Shape]:
    groups = TaskGroup.objects.filter(job=job).order_by("position")
    return [Shape.objects.get(pk=group.shape_id) for group in groups]


@pytest.mark.parametrize("more", [{}, {"coscheduled": True, "group_by": "zone", "replicas": 2}])
def test_retry_keeps_the_constraints_of_its_job(loop: Loop, more: dict[str, Any]) -> None:
    old = loop.submit(**REQUIREMENTS, **more)
    [shape] = shapes_of(old)
    assert [item["op"] for item in shape.constraints] == ["in", "ge"]
    assert (shape.placement_tags, shape.resources["licence"]) == (["quiet", "ssd"], 2)
    cancel_job(job_id=old.pk, reason="", force=False, actor="me", now=clock.now())
    loop.converge()
    done = retry_job(job_id=old.pk, guid=None, actor="owner", now=clock.now())
    new = Job.objects.get(pk=done.job_id)
    assert shapes_of(new) == [shape]
    assert (new.group_by, new.coscheduled) == (more.get("group_by", ""), bool(more))


def test_retry_is_accepted_without_a_matching_cell(loop: Loop) -> None:
    """It was taken when nothing stood against it: it waits, as the job itself would have."""
    old = loop.submit(**REQUIREMENTS)
    cancel_job(job_id=old.pk, reason="", force=False, actor="me", now=clock.now())
    loop.converge()
    loop.cell()
    assert retry_job(job_id=old.pk, guid=None, actor="owner", now=clock.now()).created
