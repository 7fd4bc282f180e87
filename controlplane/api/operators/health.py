"""Report liveness of the process (/healthz) and readiness of the system (/readyz)."""

import json
from datetime import datetime, timedelta

import psycopg
from django.conf import settings
from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from kombu.connection import Connection

from controlplane import clock
from controlplane.api.operators.shared_probe import SharedProbe
from controlplane.commands.state.tick_alerts import SILENT_SECONDS
from controlplane.queries.ticks import load_probe_time, load_silence, load_tick
from controlplane.queries.views.overviews import find_recurring_alert
from controlplane.storage.current import current_store
from controlplane.storage.interface import StoreFull

TICK_LATE_SECONDS = 60
"""An idle tick records a run every 10 s; a restart takes some seconds."""

LOST_BATCHES_FOR = timedelta(seconds=120)
"""A recurring loss updates its alert at most once a minute. A single loss, for example at a restart
of the database, is repaired by the cells, which resend their messages."""

GREETING_SECONDS = 2
"""The shortest timeout of libpq."""

BROKER_SECONDS = 1.0
"""Redis answers in milliseconds; workers wait for longer."""

PROBE_SECONDS = 1.0
"""Requests need no token, so they must not cost a check, with its connections, each."""


def healthz(request: HttpRequest) -> HttpResponse:
    """Return 200; nothing but the web process itself is checked."""
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> HttpResponse:
    """Return 200 if database, broker, store, ticks, inbox and cells work, else 503 with faults."""
    checks = _READINESS.get(max_age_seconds=PROBE_SECONDS)
    ready = all(answer == "ok" for answer in checks.values())
    return HttpResponse(
        json.dumps({"status": "ok" if ready else "not ready", "checks": checks}),
        content_type="application/json",
        status=200 if ready else 503,
    )


def check_readiness() -> dict[str, str]:
    """Return the result of each check: "ok", or the fault."""
    checks = {"broker": _check_broker(), "store": _check_store()}
    try:
        _greet_database()
        now = clock.now()
        checks["database"] = "ok"
        checks["placement"] = _check_tick("placement", now)
        checks["convergence"] = _check_tick("convergence", now)
        checks["callbacks"] = _check_tick("callbacks", now)
        checks["inbox"] = _check_inbox(checks["convergence"], now)
        checks["cells"] = _check_heartbeats(now)
    except (DatabaseError, psycopg.Error) as fault:
        checks["database"] = f"no response: {type(fault).__name__}"
    return checks


_READINESS = SharedProbe(check_readiness)


def _greet_database() -> None:
    """Raise unless a new connection succeeds in time: a pooled one hides a hanging server."""
    parameters = connection.get_connection_params()
    psycopg.connect(**{**parameters, "connect_timeout": GREETING_SECONDS}).close()


def _check_tick(name: str, now: datetime) -> str:
    finished_at = load_tick(name).finished_at
    if finished_at is None:
        return "has never run"
    if now - finished_at > timedelta(seconds=TICK_LATE_SECONDS):
        return f"last ran {(now - finished_at).total_seconds():.0f} s ago"
    return "ok"


def _check_inbox(convergence: str, now: datetime) -> str:
    if convergence != "ok":
        return "unknown: convergence, which probes it, does not run"
    delivered_until = load_probe_time()
    if delivered_until is None:
        return "no probe has come back yet"
    if now - delivered_until > timedelta(seconds=TICK_LATE_SECONDS):
        return f"no probe has come back for {(now - delivered_until).total_seconds():.0f} s"
    return find_recurring_alert("inbox_batch_lost", since=now - LOST_BATCHES_FOR) or "ok"


def _check_heartbeats(now: datetime) -> str:
    cells, last_message_at = load_silence(lost=True)
    if (
        cells
        and last_message_at is not None
        and now - last_message_at > timedelta(seconds=SILENT_SECONDS)
    ):
        silence = (now - last_message_at).total_seconds()
        return f"none of {cells} cells sent a message for {silence:.0f} s"
    return "ok"


def _check_store() -> str:
    try:
        current_store().check_space()
    except (StoreFull, OSError) as fault:
        return str(fault)
    return "ok"


def _check_broker() -> str:
    options = {
        **settings.CELERY_BROKER_TRANSPORT_OPTIONS,
        "socket_timeout": BROKER_SECONDS,
        "max_retries": 1,
    }
    try:
        with Connection(
            settings.CELERY_BROKER_URL, connect_timeout=1, transport_options=options
        ) as broker:
            broker.default_channel.client.ping()
    except Exception as fault:  # each transport has its own family of errors
        return f"no response: {type(fault).__name__}"
    return "ok"
