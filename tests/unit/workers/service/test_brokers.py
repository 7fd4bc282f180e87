"""The connections of both sides to the broker."""

import pytest
from celery.exceptions import WorkerShutdown
from celery.worker import state
from kombu.connection import Connection

from controlplane.config.broker import PromptConnection
from workers.service.broker import PromptConnection as CellConnection

NOWHERE = "redis://127.0.0.1:1/0"
SIDES = pytest.mark.parametrize("kind", [PromptConnection, CellConnection], ids=["ours", "cell"])


class Speaker:
    """Sends a message to a broker that is gone."""

    def __init__(self) -> None:
        self.tries = 0

    def speak(self) -> None:
        """Fail to."""
        self.tries += 1
        raise ConnectionRefusedError


@SIDES
def test_stopping_worker_does_not_retry_the_connection(
    kind: type[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "should_stop", 0)
    speaker = Speaker()
    with kind(NOWHERE) as connection, pytest.raises(WorkerShutdown):
        connection.ensure(speaker, speaker.speak)()
    assert speaker.tries == 1


@SIDES
def test_running_worker_retries_and_reports_each_failure(kind: type[Connection]) -> None:
    class Enough(Exception):
        pass

    failures: list[Exception] = []

    def on_error(error: Exception, pause: float) -> None:
        failures.append(error)
        if len(failures) == 3:
            raise Enough

    speaker = Speaker()
    with kind(NOWHERE) as connection, pytest.raises(Enough):
        connection.ensure(speaker, speaker.speak, on_error, interval_start=0, interval_step=0)()
    assert isinstance(failures[0], ConnectionRefusedError)
