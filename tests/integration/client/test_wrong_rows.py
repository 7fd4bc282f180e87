"""`cellrun` shows pools and jobs whose row is wrong, sets a pool's field again, cancels a job."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from cellrun import Session
from controlplane.models import Job, Pool
from tests.integration.client.test_against_the_api import SPEC, call
from tests.integration.client.test_against_the_api import command as command
from tests.integration.client.test_against_the_api import served as served
from tests.integration.client.test_against_the_api import session as session

pytestmark = pytest.mark.django_db(transaction=True)

WRONG: list[tuple[str, Any]] = [
    ("tokens", ["licence"]),
    ("tokens", {"licence": "many"}),
    ("tokens", 7),
    ("job_limits", {"max_pids": "many"}),
    ("allowed_mounts", 7),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_wrong_field_is_shown_and_can_be_set_again(
    command: CliRunner, field: str, value: Any
) -> None:
    valid = Pool.objects.values_list(field, flat=True).get()
    Pool.objects.update(**{field: value})
    assert "default" in call(command, "pools").stdout
    assert field in call(command, "pools", "default").stdout
    assert json.loads(call(command, "pools", "default", "-o", "json").stdout)[field] == value
    call(command, "pools", "default", "--set", f"{field}={json.dumps(valid)}")
    assert Pool.objects.values_list(field, flat=True).get() == valid


def test_job_with_an_invalid_band_is_shown_and_can_be_cancelled(
    command: CliRunner, session: Session
) -> None:
    job_id = session.submit(SPEC)["id"]
    Job.objects.update(band=7)
    assert json.loads(call(command, "job", str(job_id), "-o", "json").stdout)["band"] == "7"
    assert SPEC["name"] in call(command, "jobs").stdout
    call(command, "move", str(job_id), "--band", "batch")
    assert session.job(job_id)["band"] == "batch"
    Job.objects.update(band=7)
    cancelled = call(command, "cancel", str(job_id))
    assert (cancelled.exit_code, session.job(job_id)["state"]) == (0, "KILLED")
