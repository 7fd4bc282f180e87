"""The follower of the client against web processes that are restarted."""

import socket
import threading
from typing import Any

import pytest
import uvicorn

from cellrun.api import events as followers
from cellrun.api.session import Session
from cellrun.errors import ClientError
from cellrun.settings import ClientSettings
from controlplane import clock
from controlplane.api.streams.event_feed import EventFeed
from controlplane.api.streams.event_stream import EventStream
from controlplane.commands.tenancy.accounts import create_default_tenancy, create_user
from controlplane.commands.tenancy.tokens import create_api_token
from controlplane.contract.states import TaskState
from controlplane.domain.roles import Role
from controlplane.models import Job, Pool, Project, Transition

CHANGES = 40


async def _refuse(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("the stream was not admitted")


class WebProcess:
    """A web process on a port."""

    def __init__(self, port: int) -> None:
        self._listening = socket.create_server(("127.0.0.1", port))
        self.port = self._listening.getsockname()[1]
        application = EventStream(_refuse, EventFeed(poll_seconds=0.02))
        self._server = uvicorn.Server(
            uvicorn.Config(
                application, lifespan="off", log_config=None, timeout_graceful_shutdown=1
            )
        )
        self._thread = threading.Thread(target=self._server.run, args=([self._listening],))
        self._thread.start()

    def stop(self) -> None:
        """Stop, with open streams."""
        self._server.should_exit = True
        self._thread.join(30)
        self._listening.close()


@pytest.mark.django_db(transaction=True)
def test_follower_misses_nothing_over_restarts_of_web(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "FIRST_PAUSE_SECONDS", 0.05)
    create_default_tenancy()
    user, _ = create_user(name="olga", password=None, is_operator=True)
    token = create_api_token(user=user, name="test", role=Role.OPERATOR, now=clock.now())
    job = Job.objects.create(
        project=Project.objects.get(),
        owner=user,
        pool=Pool.objects.get(),
        name="sweep",
        min_available=1,
        spec={},
        spec_digest="",
        created_at=clock.now(),
        state=TaskState.PENDING,
    )
    web = WebProcess(0)
    troubles: list[ClientError] = []
    received: list[str] = []

    def change(number: int) -> None:
        Transition.objects.create(
            job_id=job.pk,
            from_state=TaskState.PENDING,
            to_state=TaskState.RUNNING,
            reason=str(number),
            at=clock.now(),
        )

    with Session(ClientSettings(f"http://127.0.0.1:{web.port}", token)) as session:
        follower: Any = session.events(project="default/default", on_trouble=troubles.append)
        with follower.open():
            for number in range(CHANGES):
                if number in (10, 25):
                    web.stop()
                    change(1000 + number)
                    web = WebProcess(web.port)
                change(number)
                if number in (9, 24, CHANGES - 1):
                    while str(number) not in received:
                        received.append(next(follower).reason)
        assert sorted(set(received), key=int) == [
            *map(str, range(CHANGES)),
            "1010",
            "1025",
        ]
        assert troubles
    web.stop()
