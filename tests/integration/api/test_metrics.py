"""Metrics say how many tasks, jobs and cells there are now."""

from collections.abc import Callable

from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from controlplane.models import Cell
from tests.integration.api.conftest import Caller
from tests.integration.api.test_reading import submit


def test_metrics_count_what_is_alive(submitter: Caller, make_cell: Callable[..., Cell]) -> None:
    submit(submitter, replicas=3)
    ended = submit(submitter, replicas=2)
    submitter.post(f"/jobs/{ended}/cancel", {})
    make_cell()
    page = Client().get("/metrics")
    assert page.status_code == 200
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(page.content.decode())
        for sample in family.samples
    }
    assert found["cellrun_tasks_open", "PENDING", "default"] == 3
    assert found["cellrun_tasks_open", "RUNNING", "default"] == 0
    assert found["cellrun_jobs_open", "default"] == 1
    assert found["cellrun_cells", "LOST"] == 1
    assert found["cellrun_alerts_open",] == 0
