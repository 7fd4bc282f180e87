"""Polls of unchanged pages get 304 in front of Django; all others reach Django."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from django.db import InterfaceError, OperationalError, connection
from django.test import Client

from controlplane import clock
from controlplane.api.body_limit import Message, Receive, Scope, Send
from controlplane.config.web import unchanged_pages
from controlplane.config.web.handler import SynchronousHandler
from controlplane.config.web.unchanged_pages import UnchangedPages
from controlplane.models import Job
from tests.integration.admin.rows import NOW
from tests.integration.admin.test_live import change_state
from tests.integration.admin.test_pages import address_of
from tests.integration.api.asgi import AsgiAnswer, call

pytestmark = pytest.mark.django_db(transaction=True)


@dataclass
class Web:
    """The web process with an operator's session: `passed` requests reached Django."""

    cookies: bytes
    seconds: float = 0.0
    passed: int = 0
    before_response: Callable[[], None] | None = None
    front: UnchangedPages = field(init=False)

    def __post_init__(self) -> None:
        self._django = SynchronousHandler()
        self.front = UnchangedPages(self._count, monotonic=lambda: self.seconds)

    async def _count(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.passed += 1

        async def send_later(message: Message) -> None:
            if self.before_response is not None:
                await asyncio.to_thread(self.before_response)
                self.before_response = None
            await send(message)

        await self._django(scope, receive, send_later)

    def get(self, path: str, etag: str = "", cookies: bytes | None = None) -> AsgiAnswer:
        """Poll a page with an ETag, or open it without one; half a second later than the last."""
        self.seconds += 0.5
        headers = [(b"cookie", self.cookies if cookies is None else cookies)]
        if etag:
            headers += [(b"hx-request", b"true"), (b"if-none-match", etag.encode())]
        return call(self.front, "GET", path, *headers)


@pytest.fixture
def web(operator: Client, monkeypatch: pytest.MonkeyPatch) -> Web:
    monkeypatch.setattr(clock, "now", lambda: NOW)
    cookies = "; ".join(f"{name}={it.value}" for name, it in operator.cookies.items())
    return Web(cookies.encode())


def etag_of(answer: AsgiAnswer) -> str:
    [etag] = answer.values(b"etag")
    return etag


@pytest.mark.parametrize("page", [address_of(Job), "/admin/"])
def test_a_poll_of_an_unchanged_page_does_not_reach_django(web: Web, page: str) -> None:
    opened = web.get(page)
    assert (opened.status, web.passed) == (200, 1)
    for _ in range(3):
        answer = web.get(page, etag_of(opened))
        assert (answer.status, answer.body, web.passed) == (304, b"", 1)
        assert answer.values(b"etag") == opened.values(b"etag")
        assert answer.values(b"cache-control") == ["no-store"]
    assert opened.values(b"x-valid-seconds") == []


def test_any_change_sends_the_poll_to_django(web: Web) -> None:
    page = address_of(Job)
    first = web.get(page)
    change_state(Job.objects.earliest("pk").pk)
    second = web.get(page, etag_of(first))
    assert (second.status, web.passed) == (200, 2)
    assert etag_of(second) != etag_of(first)
    assert (web.get(page, etag_of(second)).status, web.passed) == (304, 2)
    # The page of before is not confirmed by what is known of the new one.
    assert (web.get(page, etag_of(first)).status, web.passed) == (200, 3)


def test_a_page_of_another_job_is_confirmed_once_by_django(web: Web) -> None:
    job = Job.objects.earliest("pk")
    page = address_of(Job, job)
    opened = web.get(page)
    change_state(job.pk + 1)
    assert (web.get(page, etag_of(opened)).status, web.passed) == (304, 2)
    assert (web.get(page, etag_of(opened)).status, web.passed) == (304, 2)


def test_changes_are_noticed_half_a_second_late_at_most(web: Web) -> None:
    page = address_of(Job)
    opened = web.get(page)
    assert web.get(page, etag_of(opened)).status == 304
    change_state(Job.objects.earliest("pk").pk)
    web.seconds -= 0.25
    assert web.get(page, etag_of(opened)).status == 304
    web.seconds -= 0.25
    assert web.get(page, etag_of(opened)).status == 200


@pytest.mark.parametrize("cookies", [b"", b"sessionid=other"])
def test_the_poll_of_another_session_reaches_django(web: Web, cookies: bytes) -> None:
    page = address_of(Job)
    opened = web.get(page)
    answer = web.get(page, etag_of(opened), cookies)
    assert (answer.status, web.passed) == (302, 2)  # to the login


def test_a_page_is_rendered_again_when_it_is_old(web: Web) -> None:
    page = address_of(Job)
    opened = web.get(page)
    web.seconds += 60
    web.get(page, etag_of(opened))
    assert web.passed == 2


def test_a_change_during_the_request_is_not_lost(web: Web) -> None:
    page, job = address_of(Job), Job.objects.earliest("pk").pk

    def change() -> None:
        change_state(job)
        connection.close()

    web.before_response = change
    opened = web.get(page)
    assert (web.get(page, etag_of(opened)).status, web.passed) == (200, 2)


@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
def test_without_a_database_django_responds(
    web: Web, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    page = address_of(Job)
    opened = web.get(page)

    def fail() -> None:
        raise error("the connection is lost")

    monkeypatch.setattr(unchanged_pages, "load_newest_changes", fail)
    assert (web.get(page, etag_of(opened)).status, web.passed) == (304, 2)


def test_requests_of_an_outage_do_not_wait_in_turn(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0

    def time_out() -> None:
        nonlocal reads
        reads += 1
        web.seconds += 10
        raise OperationalError("no connection within 10 seconds")

    monkeypatch.setattr(unchanged_pages, "load_newest_changes", time_out)
    for _ in range(5):
        web.get(address_of(Job))
        web.seconds -= 0.49
    assert reads == 1


def test_the_number_of_known_pages_is_bounded(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unchanged_pages, "_MOST_PAGES", 2)
    opened = {page: web.get(page) for page in ("/admin/?a", "/admin/?b", "/admin/?c")}
    assert web.passed == 3
    for page, passed in (("/admin/?c", 3), ("/admin/?b", 3), ("/admin/?a", 4)):
        assert web.get(page, etag_of(opened[page])).status == 304
        assert web.passed == passed


def test_other_requests_are_passed_on(web: Web) -> None:
    assert web.get("/healthz").status == 200
    assert call(web.front, "POST", "/admin/login/").status == 403
    assert web.passed == 2
