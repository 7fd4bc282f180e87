"""/readyz reports what does not work; each tick must have run within the last minute."""

import socket
from datetime import timedelta

import pytest
from django.db import connection, connections
from django.test import Client

from controlplane import clock
from controlplane.models import InboxProbe, TickState

pytestmark = pytest.mark.django_db

TICKS = ("placement", "convergence", "callbacks")


def test_readyz_fails_without_a_recent_run_of_each_tick() -> None:
    now = clock.now()
    for name in TICKS:
        answer = Client().get("/readyz")
        assert answer.status_code == 503
        assert answer.json()["checks"][name] == "has never run"
        TickState.objects.create(name=name, finished_at=now)
    checks = Client().get("/readyz").json()["checks"]
    assert [checks[name] for name in (*TICKS, "database")] == ["ok"] * 4
    for name in TICKS:
        TickState.objects.filter(name=name).update(finished_at=now - timedelta(seconds=100))
        answer = Client().get("/readyz")
        assert answer.status_code == 503
        assert answer.json()["checks"][name].startswith("last ran 10")


def test_readyz_reports_a_silent_inbox() -> None:
    now = clock.now()
    check = Client().get("/readyz").json()["checks"]["inbox"]
    assert check == "unknown: convergence, which probes it, does not run"
    TickState.objects.create(name="convergence", finished_at=now)
    assert Client().get("/readyz").json()["checks"]["inbox"] == "no probe has come back yet"
    InboxProbe.objects.create(shard=0, sent_at=now, received_at=now)
    shard = InboxProbe.objects.create(shard=1, sent_at=now, received_at=now)
    assert Client().get("/readyz").json()["checks"]["inbox"] == "ok"
    shard.received_at = now - timedelta(seconds=100)
    shard.save()
    assert (
        Client().get("/readyz").json()["checks"]["inbox"].startswith("no probe has come back for")
    )


def test_readyz_reports_a_database_connection_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parameters = connection.get_connection_params()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = {"host": "127.0.0.1", "port": silent.getsockname()[1]}
        monkeypatch.setattr(
            connections["default"], "get_connection_params", lambda: {**parameters, **address}
        )
        answer = Client().get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["checks"]["database"] == "no response: ConnectionTimeout"
