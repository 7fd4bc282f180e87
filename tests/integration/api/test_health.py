"""/readyz reports what does not work; each tick must have run within the last minute."""

import socket
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections
from django.test import Client

from controlplane import clock
from controlplane.api.operators import health
from controlplane.models import InboxProbe, TickState

pytestmark = pytest.mark.django_db

REQUESTS = 20
USUAL_PROBE_SECONDS = health.PROBE_SECONDS
TICKS = ("placement", "convergence", "callbacks")


@pytest.fixture(autouse=True)
def probe_of_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "PROBE_SECONDS", 0.0)


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
    InboxProbe.objects.create(shard=0, sent_at=now, delivered_until=now)
    shard = InboxProbe.objects.create(shard=1, sent_at=now)
    assert Client().get("/readyz").json()["checks"]["inbox"] == "no probe has come back yet"
    shard.delivered_until = now
    shard.save()
    assert Client().get("/readyz").json()["checks"]["inbox"] == "ok"
    shard.delivered_until = now - timedelta(seconds=100)
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


class Connections:
    """A listening port that closes each connection, and counts them."""

    def __init__(self) -> None:
        self.count = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                found, _ = self._server.accept()
            except OSError:
                return
            self.count += 1
            found.close()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()


def test_readyz_makes_no_connection_for_each_request(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Connections()
    settings.CELERY_BROKER_URL = f"redis://127.0.0.1:{broker.port}/0"
    try:
        answers = [Client().get("/readyz")]
        connections_of_a_probe = broker.count
        assert USUAL_PROBE_SECONDS == 1.0
        monkeypatch.setattr(health, "PROBE_SECONDS", 60.0)
        answers += [Client().get("/readyz") for _ in range(REQUESTS)]
    finally:
        broker.close()
    assert {answer.status_code for answer in answers} == {503}
    assert {answer.json()["checks"]["broker"] for answer in answers} == {
        "no response: OperationalError"
    }
    assert broker.count == connections_of_a_probe > 0


def test_readyz_reports_a_silent_broker_within_two_seconds(settings: Any) -> None:
    """As one that is frozen: its host accepts connections, and nothing answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings.CELERY_BROKER_URL = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        began = time.monotonic()
        answer = Client().get("/readyz")
        seconds = time.monotonic() - began
    assert answer.json()["checks"]["broker"].startswith("no response")
    assert seconds < 2.5


def test_readyz_reports_an_outage_and_a_recovery_with_the_next_probe(settings: Any) -> None:
    working = settings.CELERY_BROKER_URL
    assert Client().get("/readyz").json()["checks"]["broker"] == "ok"
    broker = Connections()
    broker.close()
    settings.CELERY_BROKER_URL = f"redis://127.0.0.1:{broker.port}/0"
    assert Client().get("/readyz").json()["checks"]["broker"].startswith("no response")
    settings.CELERY_BROKER_URL = working
    assert Client().get("/readyz").json()["checks"]["broker"] == "ok"
