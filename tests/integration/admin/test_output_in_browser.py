"""The output of an attempt in a real browser: it is followed, searched, and not wrapped."""

from collections.abc import Iterator

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect
from pytest_django.live_server_helper import LiveServer

from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, Job
from controlplane.storage.folder import append_log
from tests.harness.browser import signed_in_page
from tests.integration.admin.rows import make_installation
from tests.integration.admin.test_job_tasks import job_of
from tests.integration.admin.test_pages import address_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.browser]


@pytest.fixture
def page(live_server: LiveServer) -> Iterator[Page]:
    make_installation()
    operator = User.objects.create_superuser("olga", password="x")
    permissions = ["clipboard-read", "clipboard-write"]
    with signed_in_page(live_server.url, operator, permissions=permissions) as (opened, complaints):
        yield opened
    assert complaints == []


def open_attempt(page: Page, state: S, output: bytes) -> Attempt:
    attempt = Attempt.objects.get(task__job=job_of([state]))
    append_log(attempt.pk, "stdout", offset=0, content=output)
    page.goto(address_of(Attempt, attempt))
    return attempt


def test_later_output_appears_until_following_is_switched_off(page: Page) -> None:
    attempt = open_attempt(page, S.RUNNING, b"first\n")
    stdout = page.locator("pre[data-stream$=stdout]")
    expect(stdout).to_have_text("first\n")
    append_log(attempt.pk, "stdout", offset=6, content=b"second\n")
    append_log(attempt.pk, "stderr", offset=0, content=b"oh\n")
    expect(stdout).to_have_text("first\nsecond\n")
    expect(page.locator("pre.cellrun-stderr")).to_have_text("oh\n")
    page.get_by_label("follow").uncheck()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    with page.expect_request("**/change/", timeout=10_000):  # the next poll of the page itself
        pass
    assert not [url for url in requests if "/output/" in url]


def test_a_search_shows_only_lines_with_the_text(page: Page) -> None:
    open_attempt(page, S.FAILED, b"one\nan Error here\nthree\nerror again\n")
    stdout = page.locator("pre[data-stream$=stdout]")
    page.get_by_role("searchbox", name="Show only lines").fill("ERROR")
    expect(stdout).to_have_text("an Error here\nerror again")
    expect(page.locator("[data-output] [role=status]")).to_have_text("2 of the shown lines")
    page.get_by_role("searchbox", name="Show only lines").fill("")
    expect(stdout).to_have_text("one\nan Error here\nthree\nerror again\n")


def test_long_lines_are_wrapped_unless_the_user_decides_otherwise(page: Page) -> None:
    open_attempt(page, S.FAILED, b"x" * 5000 + b"\n")
    stdout = page.locator("pre[data-stream$=stdout]")
    is_wide = "pre => pre.scrollWidth > pre.clientWidth"
    assert not stdout.evaluate(is_wide)
    page.get_by_label("wrap lines").uncheck()
    assert stdout.evaluate(is_wide)


def test_the_last_line_of_a_failure_is_visible(page: Page) -> None:
    lines = [f"line {number} {'x' * 380}\n" for number in range(9)]
    attempt = open_attempt(page, S.FAILED, "".join([*lines, "the cause\n"]).encode())
    page.goto(address_of(Job, attempt.job))
    tail = page.locator("pre.cellrun-tail")
    expect(tail).to_contain_text("the cause")
    assert tail.evaluate(
        """pre => {
            const text = pre.firstChild;
            const range = document.createRange();
            range.setStart(text, text.length - 5);
            range.setEnd(text, text.length - 2);
            return range.getBoundingClientRect().bottom <= pre.getBoundingClientRect().bottom;
        }"""
    )


def test_a_command_is_copied(page: Page) -> None:
    attempt = open_attempt(page, S.FAILED, b"")
    page.locator("summary", has_text="Commands").click()
    page.get_by_label(f"copy cellrun history {attempt.pk}").click()
    expect(page.get_by_text("copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == f"cellrun history {attempt.pk}"
