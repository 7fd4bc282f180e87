"""Flower and the admin lead to each other, and Flower explains workers and forgets dead ones."""

import re
import time
from collections.abc import Iterator

import pytest
import requests
from celery import Celery
from playwright.sync_api import Page, expect

from tests.e2e.stack import RunningStack, wait_until
from tests.e2e.work import run_to_end, session_of
from tests.harness.chromium import foreign_page

pytestmark = [
    pytest.mark.stack,
    pytest.mark.browser,
    pytest.mark.xdist_group("shared stack"),
]


@pytest.fixture
def uid(shared_stack: RunningStack) -> str:
    """The uid of an attempt of the job `seen`, which Flower shows."""
    with session_of(shared_stack) as session:
        body = {"name": "seen", "task_type": "process", "command": ["true"]}
        _, task = run_to_end(session, body)
    found = str(task["attempt_uid"])
    url = f"{shared_stack.flower_url}/api/task/info/{found}"
    wait_until(
        lambda: requests.get(url, auth=shared_stack.flower_login, timeout=30).ok,
        seconds=30,
        what="Flower shows the attempt",
    )
    return found


@pytest.fixture
def page(shared_stack: RunningStack) -> Iterator[Page]:
    user, password = shared_stack.flower_login
    login = {"username": user, "password": password, "origin": shared_stack.flower_url}
    with foreign_page(shared_stack.flower_url, http_credentials=login) as (page, complaints):
        yield page
        assert [line for line in complaints if "Error" in line] == []


def log_in(page: Page, stack: RunningStack) -> None:
    page.goto(f"{stack.environment['CELLRUN_URL']}/admin/")
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password").fill(stack.environment["CELLRUN_ADMIN_PASSWORD"])
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("link", name="Flower", exact=False).first).to_be_visible()


def test_page_of_an_attempt_leads_to_the_admin_and_back(
    shared_stack: RunningStack, page: Page, uid: str
) -> None:
    log_in(page, shared_stack)
    page.goto(f"{shared_stack.flower_url}/task/{uid}")
    page.get_by_role("link", name="This attempt").click()
    expect(page.get_by_text(uid).first).to_be_visible()
    expect(page).to_have_url(re.compile("/admin/controlplane/attempt/"))
    page.locator(f'a[href$="/task/{uid}"]').first.click()
    expect(page.locator("#taskid")).to_have_text(uid)
    page.get_by_role("link", name="Cellrun", exact=True).click()
    page.wait_for_url(f"{shared_stack.environment['CELLRUN_URL']}/admin/")


def test_list_of_attempts_has_no_ticks(page: Page, uid: str) -> None:
    page.goto("/workers")
    page.get_by_role("link", name="Attempts without ticks").click()
    expect(page.get_by_text(uid[:8]).first).to_be_visible()
    names = page.locator("#tasks-table tbody tr td:first-child").all_inner_texts()
    assert names
    assert [name for name in names if not name.startswith("attempt.")] == []


def test_page_of_a_worker_shows_its_role(shared_stack: RunningStack, page: Page) -> None:
    listed = requests.get(
        f"{shared_stack.flower_url}/workers?json=1", auth=shared_stack.flower_login, timeout=30
    ).json()["data"]
    [placement] = [it["hostname"] for it in listed if it["hostname"].startswith("placement@")]
    page.goto("/workers")
    page.get_by_role("link", name=placement).click()
    expect(page.get_by_text("It assigns waiting tasks to cells.")).to_be_visible()
    expect(page.get_by_text("Online", exact=True)).to_be_visible()
    log_in(page, shared_stack)
    page.goto(f"{shared_stack.flower_url}/worker/cell@cell-1")
    expect(page.get_by_text("It runs attempts on its host.")).to_be_visible()
    page.get_by_role("link", name="This cell").click()
    expect(page.get_by_role("link", name="cell-1").first).to_be_visible()


def test_unknown_worker_and_missing_login_get_no_page(shared_stack: RunningStack) -> None:
    url = f"{shared_stack.flower_url}/worker/cell@unknown"
    assert requests.get(url, timeout=10).status_code == 401
    assert requests.get(url, auth=shared_stack.flower_login, timeout=10).status_code == 404


def test_name_of_a_worker_is_escaped(shared_stack: RunningStack) -> None:
    name = 'cell@<b onclick="x">'
    send_events(shared_stack, name, "worker-heartbeat")
    url = f"{shared_stack.flower_url}/worker/{name}"

    def shown() -> bool:
        found = requests.get(url, auth=shared_stack.flower_login, timeout=10)
        assert "<b onclick" not in found.text
        return found.ok

    wait_until(shown, seconds=30, what="Flower shows the worker")


def test_dead_worker_is_listed_for_ten_minutes(shared_stack: RunningStack) -> None:
    def listed() -> set[str]:
        url = f"{shared_stack.flower_url}/workers?json=1"
        found = requests.get(url, auth=shared_stack.flower_login, timeout=30).json()["data"]
        return {worker["hostname"] for worker in found}

    dead = {"cell@dead", "cell@long-dead"}
    for name in dead:
        send_events(shared_stack, name, "worker-heartbeat")
    wait_until(lambda: dead <= listed(), seconds=30, what="Flower lists the workers")
    for name, seconds in (("cell@dead", 500), ("cell@long-dead", 700)):
        send_events(shared_stack, name, "worker-offline", timestamp=time.time() - seconds)
    wait_until(lambda: "cell@long-dead" not in listed(), seconds=30, what="Flower forgets it")
    assert "cell@dead" in listed()


def send_events(stack: RunningStack, name: str, *kinds: str, **fields: float) -> None:
    app = Celery()
    # Of the application itself, Celery would replace the address by that in the environment.
    with (
        app.connection_for_write(stack.environment["CELERY_BROKER_URL"]) as connection,
        app.events.Dispatcher(connection, hostname=name) as dispatcher,
    ):
        for kind in kinds:
            dispatcher.send(kind, freq=2, active=0, processed=0, **fields)
