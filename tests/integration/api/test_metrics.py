"""Metrics count the present tasks, jobs and cells."""

from collections.abc import Callable
from datetime import timedelta
from ipaddress import IPv4Network
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from prometheus_client.parser import text_string_to_metric_families
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from controlplane import clock
from controlplane.commands.state.apply import apply
from controlplane.config.web.handler import SynchronousHandler
from controlplane.domain.convergence.latencies import BOUNDS, bucket_of
from controlplane.domain.state.effects import Effects, RaiseAlert
from controlplane.domain.state.states import CallbackState
from controlplane.models import (
    Callback,
    Cell,
    Job,
    OneOff,
    Pool,
    PoolSample,
    Project,
    Task,
    TickState,
)
from controlplane.queries.sql import execute, rows
from tests.integration.api.asgi import call
from tests.integration.api.conftest import Caller, change_setting
from tests.integration.api.test_reading import submit


def test_metrics_count_open_tasks_jobs_and_cells(
    submitter: Caller, make_cell: Callable[..., Cell]
) -> None:
    submit(submitter, replicas=3)
    ended = submit(submitter, replicas=2)
    submitter.post(f"/jobs/{ended}/cancel", {})
    make_cell()
    found = figures()
    assert found["cellrun_tasks_open", "PENDING", "default"] == 3
    assert found["cellrun_tasks_open", "RUNNING", "default"] == 0
    assert found["cellrun_jobs_open", "default"] == 1
    assert found["cellrun_cells", "LOST"] == 1
    assert found["cellrun_alerts_open",] == 0


def test_metrics_have_the_last_sample_of_each_pool(submitter: Caller) -> None:
    now, pool = clock.now(), Pool.objects.get(name="default")
    for seconds, waiting in ((15, [9, 9, 9]), (0, [1, 2, 3])):
        PoolSample.objects.create(
            at=now - timedelta(seconds=seconds),
            pool=pool,
            waiting=waiting,
            stuck=[0, 1, 0],
            held=[4, 0, 0],
            latencies=[],
            used={"cpu_millis": 500},
            capacity={"cpu_millis": 4000, "gpu": 2},
        )
    found = figures()
    assert found["cellrun_pool_waiting_tasks", "default", "production"] == 1
    assert found["cellrun_pool_waiting_tasks", "batch", "default"] == 3
    assert found["cellrun_pool_stuck_tasks", "default", "interactive"] == 1
    assert found["cellrun_pool_held_attempts", "default", "production"] == 4
    assert found["cellrun_pool_used", "cpu_millis", "default"] == 500
    assert found["cellrun_pool_capacity", "default", "gpu"] == 2


def test_starts_and_ends_are_those_of_the_samples_of_five_minutes() -> None:
    now, pool = clock.now(), Pool.objects.create(name="gpu")
    bucket = bucket_of(4)  # from 3 to 5 seconds
    latencies = [10 if n == bucket else 0 for n in range(len(BOUNDS) + 1)]
    for seconds in (301, 200, 10):
        PoolSample.objects.create(
            at=now - timedelta(seconds=seconds),
            pool=pool,
            waiting=[0, 0, 0],
            stuck=[0, 0, 0],
            held=[0, 0, 0],
            latencies=latencies,
            started=10,
            succeeded=5,
            failed=2,
            killed=1,
        )
    found = figures()
    assert found["cellrun_pool_recent_starts", "gpu"] == 20
    ends = {it: found["cellrun_pool_recent_ends", *sorted((it, "gpu"))] for it in OUTCOMES}
    assert ends == {"succeeded": 10, "failed": 4, "killed": 2}
    assert found["cellrun_pool_recent_latency_seconds", "50", "gpu"] == pytest.approx(4.0)
    assert found["cellrun_pool_recent_latency_seconds", "95", "gpu"] == pytest.approx(4.9)


def test_idle_pool_wants_nothing_and_an_older_sample_has_no_wanted_capacity() -> None:
    """An autoscaler keeps the number of cells while a metric is absent."""
    now = clock.now()
    for name, wanted in (("idle", {}), ("older", None)):
        PoolSample.objects.create(
            at=now,
            pool=Pool.objects.create(name=name),
            waiting=[0, 0, 0],
            stuck=[0, 0, 0],
            held=[0, 0, 0],
            latencies=[],
            wanted=wanted,
        )
    found = figures()
    assert found["cellrun_pool_wanted", "cpu_millis", "idle"] == 0
    assert found["cellrun_pool_wanted", "idle", "memory_mib"] == 0
    assert not [key for key in found if key[0] == "cellrun_pool_wanted" and "older" in key]


OUTCOMES = ("succeeded", "failed", "killed")


def figures() -> dict[tuple[str, ...], float]:
    page = Client().get("/metrics")
    assert page.status_code == 200
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(page.content.decode())
        for sample in family.samples
    }


def test_metrics_report_ticks_callbacks_and_deletion(submitter: Caller) -> None:
    job, now = submit(submitter, replicas=3), clock.now()
    TickState.objects.update_or_create(
        name="convergence",
        defaults={
            "started_at": now - timedelta(seconds=12),
            "finished_at": now - timedelta(seconds=10),
            "phases": {"endings": 120},
            "counts": {"ended": 3},
            "lag_seconds": 1.5,
        },
    )
    tasks = Task.objects.filter(job_id=job).order_by("id")
    for task, state in zip(tasks, ("waiting", "waiting", "abandoned"), strict=True):
        Callback.objects.create(
            job_id=job,
            task=task,
            owner_id=1,
            url="http://a/",
            host="a:80",
            state=state,
            due_at=now - timedelta(seconds=task.index),
            give_up_at=now,
            created_at=now,
            ended_at=now if state == "abandoned" else None,
        )
    OneOff.objects.create(
        task=tasks[0],
        job_id=job,
        project=Project.objects.get(),
        guid="g",
        domain="d",
        claim=UUID(int=1),
        claimed_at=now,
    )
    Job.objects.filter(pk=job).update(expires_at=now)
    apply(Effects(alerts=[RaiseAlert("tick_late", "placement", "…")]), now=now)
    found = figures()
    assert found["cellrun_tick_lag_seconds", "convergence"] == 1.5
    assert found["cellrun_tick_duration_seconds", "convergence"] == 2
    assert 10 <= found["cellrun_tick_age_seconds", "convergence"] < 60
    seen = found["cellrun_tick_last_run_timestamp_seconds", "convergence"]
    assert seen == pytest.approx(now.timestamp() - 10, abs=0.001)
    assert found["cellrun_tick_phase_seconds", "convergence", "endings"] == 0.12
    assert found["cellrun_tick_actions", "convergence", "ended"] == 3
    assert found["cellrun_callbacks", CallbackState.WAITING] == 2
    assert found["cellrun_callbacks", CallbackState.ABANDONED] == 1
    assert found["cellrun_callbacks", CallbackState.CLAIMED] == 0
    assert 1 <= found["cellrun_callback_overdue_seconds",] < 60
    assert found["cellrun_tasks_resolving",] == 1
    assert found["cellrun_jobs_expired",] == 1
    assert found["cellrun_jobs_deleted",] == 0
    assert found["cellrun_alerts", "tick_late"] == found["cellrun_alerts_open",] == 1


def test_metrics_do_not_scan_finished_rows(submitter: Caller) -> None:
    """With a million finished rows each of them is an index's work."""
    submit(submitter)
    with CaptureQueriesContext(connection) as caught:
        figures()
    statements = [item["sql"] for item in caught.captured_queries]
    assert len(statements) <= 10
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        for statement in statements:
            cursor.execute(f"EXPLAIN {statement}")
            plan = "\n".join(line for (line,) in cursor.fetchall())
            for table in ("task", "job", "callback", "oneoff", "alert", "auditline", "poolsample"):
                assert f"Seq Scan on controlplane_{table} " not in plan, plan


def test_refusals_of_a_year_cost_no_more_than_those_of_an_hour() -> None:
    execute(
        """
        INSERT INTO controlplane_auditline
            (at, actor, via, token, address, request_id, action, subject, text)
        SELECT %(now)s::timestamptz - n * interval '2 hours', 'unknown', 'token', '', '', '',
               'refuse.token', 'an API token', '' FROM generate_series(1, 4000) AS n
        """,
        {"now": clock.now()},
    )
    execute("ANALYZE controlplane_auditline")
    with CaptureQueriesContext(connection) as caught:
        assert figures()["cellrun_refusals_audited", "token"] == 0
    [statement] = [item["sql"] for item in caught.captured_queries if "auditline" in item["sql"]]
    plan = "\n".join(line for (line,) in rows(f"EXPLAIN (ANALYZE) {statement}"))
    assert "Index Cond: (at >" in plan, plan


@pytest.mark.parametrize(
    ("address", "headers", "status"),
    [
        ("127.0.0.1", {}, 200),
        ("::1", {}, 200),
        ("::ffff:127.0.0.1", {}, 200),
        ("203.0.113.7", {}, 401),
        ("203.0.113.7", {"X-Forwarded-For": "127.0.0.1"}, 401),
        # A proxy on this host that does not pass on the address of its client.
        ("127.0.0.1", {"X-Forwarded-Proto": "https"}, 401),
        ("127.0.0.1", {"Via": "1.1 proxy"}, 401),
        ("", {}, 401),
        ("unknown", {}, 401),
    ],
)
def test_metrics_without_a_token_need_a_listed_address(
    address: str, headers: dict[str, str], status: int
) -> None:
    page = Client(REMOTE_ADDR=address).get("/metrics", headers=headers)
    assert page.status_code == status
    if status == 401:
        assert page["Content-Type"] == "application/problem+json"
        assert page["WWW-Authenticate"].startswith("Bearer")


def test_metrics_are_open_to_operators_and_to_networks_of_the_settings(
    submitter: Caller, operator: Caller, settings: Any
) -> None:
    far = Client(REMOTE_ADDR="10.1.2.3")
    assert far.get("/metrics", headers=submitter.headers).status_code == 403
    assert far.get("/metrics", headers=operator.headers).status_code == 200
    wrong = {"Authorization": "Bearer cr_unknown"}
    assert Client().get("/metrics", headers=wrong).status_code == 401
    change_setting(settings, metrics_networks=(IPv4Network("10.0.0.0/8"),))
    assert far.get("/metrics").status_code == 200
    assert Client().get("/metrics").status_code == 401
    change_setting(settings, metrics_networks=())
    assert far.get("/metrics").status_code == 401


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("peer", "forwarded_for", "status"),
    [
        ("127.0.0.1", None, 200),
        ("127.0.0.1", "203.0.113.7", 401),
        # The client of the proxy claims to be local; the proxy appends the address it sees.
        ("127.0.0.1", "127.0.0.1, 203.0.113.7", 401),
        ("203.0.113.7", "127.0.0.1", 401),
    ],
)
def test_metrics_behind_a_proxy_count_the_address_of_its_client(
    peer: str, forwarded_for: str | None, status: int
) -> None:
    """As uvicorn, with its defaults, runs the application."""
    application: Any = ProxyHeadersMiddleware(SynchronousHandler())
    headers = [(b"x-forwarded-for", forwarded_for.encode())] if forwarded_for else []
    assert call(application, "GET", "/metrics", *headers, peer=peer).status == status
