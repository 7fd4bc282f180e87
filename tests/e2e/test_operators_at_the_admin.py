"""Operators and an auditor use the admin of a live stack with containers, each in a browser."""

import re
from collections.abc import Iterator
from urllib.parse import urljoin, urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from cellrun import Session
from tests.e2e.engine import remove_containers
from tests.e2e.stack import RunningStack, open_folder, remnants, wait_until
from tests.e2e.work import count_states, session_of, shell_job, sleepers, wait_for_end
from tests.harness.chromium import new_page, started_browser

pytestmark = [pytest.mark.stack, pytest.mark.engine, pytest.mark.browser]

MANY = 10_000
PASSWORD = "three blind mice 3"
NUMBER = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|(?<![a-z])\d+(?![a-z])")
# A link to these leads to no page, or ends the session.
NO_PAGES = re.compile(
    r"logout|jsi18n|autocomplete|download|/output/|/usage/file/|/artifacts/|/images/"
)
# Pages poll every few seconds.
SHOWN_MS = 30_000
DRAIN = re.compile("draining|drained|cordoned")
# Hints of the browser about forms of Django's admin.
HARMLESS = ("Autofocus processing was blocked", "[DOM] Input elements should have autocomplete")


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    with open_folder() as folder:
        with RunningStack(folder / "home") as running:
            yield running
            remove_containers(running.installation)
        assert remnants(running.home) == []


@pytest.fixture(scope="module")
def session(stack: RunningStack) -> Session:
    return session_of(stack, operator=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as started:
        yield started


@pytest.fixture(scope="module")
def olga(stack: RunningStack, browser: Browser) -> Page:
    """The page of the operator that the stack made."""
    names = ("CELLRUN_ADMIN_USER", "CELLRUN_ADMIN_PASSWORD")
    return log_in(stack, browser, *(stack.environment[name] for name in names))


@pytest.fixture(scope="module")
def oscar(stack: RunningStack, browser: Browser, olga: Page) -> Page:
    """The page of another operator, made by the first."""
    add_user(olga, "oscar", is_operator=True)
    return log_in(stack, browser, "oscar", PASSWORD)


@pytest.fixture(scope="module")
def audrey(stack: RunningStack, browser: Browser, session: Session, olga: Page) -> Page:
    """The page of an auditor, made by the operator."""
    add_user(olga, "audrey", is_operator=False)
    session.put_member("user", "audrey", role=None)
    return log_in(stack, browser, "audrey", PASSWORD)


def log_in(stack: RunningStack, browser: Browser, user: str, password: str) -> Page:
    """Return a page of a browser of its own in which the user is logged in."""
    page, complaints = new_page(browser, stack.environment["CELLRUN_URL"])
    page.complaints = complaints  # type: ignore[attr-defined]
    page.goto("/admin/login/")
    page.get_by_label("Username").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_title("Overview | Cellrun")
    return page


def add_user(page: Page, name: str, *, is_operator: bool) -> None:
    """Add a user by the form of the admin."""
    page.goto("/admin/auth/user/add/")
    page.locator("[name=username]").fill(name)
    for field in page.locator("input[type=password]").all():
        field.fill(PASSWORD)
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("[name=username]")).to_have_value(name)
    if is_operator:
        page.locator("[name=is_staff]").check()
        page.locator("[name=is_superuser]").check()
        page.get_by_role("button", name="Save", exact=True).click()
        expect(page).to_have_url(re.compile(r"/auth/user/$"))


def row_of(page: Page, name: str) -> Locator:
    """Return the row of a list by a text that it contains."""
    return page.locator("#result_list tr.data-row", has=page.get_by_text(name, exact=True))


def run_action(page: Page, label: str, confirm: str, *, reason: str = "") -> None:
    """Run an action of the page of a row and confirm it."""
    page.get_by_role("button", name=f"{label} …").click()
    if reason:
        page.get_by_label("Reason").fill(reason)
    page.get_by_role("button", name=confirm).click()


def crawl(page: Page) -> Iterator[str]:
    """Open one page of each kind that links from the overview lead to; yield its path."""
    kinds: set[str] = set()
    waiting = ["/admin/"]
    while waiting:
        path = waiting.pop(0)
        kind = NUMBER.sub("N", path)
        if kind in kinds or NO_PAGES.search(path):
            continue
        kinds.add(kind)
        page.complaints.clear()  # type: ignore[attr-defined]
        answer = page.goto(path)
        assert answer is not None
        assert answer.status == 200, (path, answer.status)
        complaints: list[str] = page.complaints  # type: ignore[attr-defined]
        assert [line for line in complaints if not line.startswith(HARMLESS)] == [], path
        yield path
        found = page.eval_on_selector_all("a[href]", "links => links.map(link => link.href)")
        targets = [urlsplit(urljoin(page.url, link)) for link in found]
        waiting += [it.path for it in targets if it.netloc == urlsplit(page.url).netloc]


@pytest.fixture(scope="module")
def work(session: Session) -> dict[str, int]:
    """Jobs of every sort: one that failed, one that waits, one that runs, one of many tasks."""
    failing = shell_job("echo loss is nan >&2; exit 3", name="failing")
    resources = {"cpu": 4_000}  # more than any cell has
    waiting = shell_job("true", name="waiting", resources=resources, allow_unsatisfiable=True)
    made = {
        "failing": session.submit(failing)["id"],
        "waiting": session.submit(waiting)["id"],
        "running": session.submit(sleepers(1, 600, name="running"))["id"],
        "many": session.submit(sleepers(MANY, 600, name="many"))["id"],
    }
    wait_for_end(session, made["failing"])
    for name in ("running", "many"):
        wait_until(
            lambda name=name: count_states(session.job(made[name]))["RUNNING"] > 0,  # type: ignore[misc]
            seconds=60,
            what=f"{name} runs",
        )
    return made


def test_every_page_opens_for_operator_and_auditor(
    work: dict[str, int], olga: Page, audrey: Page
) -> None:
    of_operator, of_auditor = set(crawl(olga)), set()
    for path in crawl(audrey):
        of_auditor.add(path)
        buttons = audrey.locator("form[method=post] button:visible").all_inner_texts()
        own = path.startswith(("/account/", "/admin/password_change/", "/admin/login/"))
        assert own or [text for text in buttons if "log out" not in text.lower()] == [], path
    for name in ("job", "task", "attempt", "cell", "pool", "project", "alert", "auditline"):
        assert {f"/admin/controlplane/{name}/"} <= of_operator & of_auditor
    assert {path for path in of_operator if path.endswith("/add/")}
    assert not {path for path in of_auditor if path.endswith("/add/")}


def test_the_page_of_ten_thousand_tasks_follows_their_end(
    work: dict[str, int], olga: Page, oscar: Page
) -> None:
    address = f"/admin/controlplane/job/{work['many']}/change/"
    for page in (olga, oscar):
        page.goto(address)
        expect(page.locator(".cellrun-state")).to_contain_text("running")
        expect(page.locator("canvas").first).to_be_visible()
    run_action(olga, "Cancel job", "Cancel jobs", reason="too many")
    expect(oscar.locator(".cellrun-state")).to_contain_text("killed", timeout=SHOWN_MS)
    expect(oscar.locator(".cellrun-notes")).to_contain_text("too many")


def test_two_operators_cancel_one_job_at_once(
    work: dict[str, int], session: Session, olga: Page, oscar: Page
) -> None:
    address = f"/admin/controlplane/job/{work['running']}/change/"
    for page in (olga, oscar):
        page.goto(address)
        page.get_by_role("button", name="Cancel job …").click()
        page.get_by_label("Reason").fill("stopped at once")
    for page in (olga, oscar):
        page.get_by_role("button", name="Cancel jobs").click()
        expect(page).to_have_url(re.compile(r"/controlplane/job/"))
    assert wait_for_end(session, work["running"])["state"] == "KILLED"
    for page in (olga, oscar):
        page.goto(address)
        expect(page.locator(".cellrun-state")).to_contain_text("killed")
        expect(page.get_by_role("button", name="Cancel job …")).to_have_count(0)


def test_an_operator_drains_a_cell_and_another_restores_it(
    session: Session, olga: Page, oscar: Page
) -> None:
    cell = session.cells()[0]["name"]
    for page in (olga, oscar):
        page.goto("/admin/controlplane/cell/")
        page.get_by_role("link", name=cell, exact=True).click()
        expect(page.locator(".cellrun-state")).to_contain_text("ready")
    address = olga.url
    run_action(olga, "Drain", "Drain")
    expect(oscar.locator(".cellrun-state")).to_contain_text(DRAIN, timeout=SHOWN_MS)
    olga.goto(address)
    run_action(oscar, "Uncordon", "Uncordon")
    expect(olga.locator(".cellrun-state")).to_contain_text("ready", timeout=SHOWN_MS)


def test_two_clicks_lead_from_the_overview_to_the_failing_line(
    work: dict[str, int], olga: Page
) -> None:
    olga.goto("/admin/")
    olga.get_by_role("link", name="failing").first.click()
    expect(olga.get_by_text("loss is nan").first).to_be_visible()


def test_one_click_leads_from_a_waiting_job_to_the_missing_figure(
    work: dict[str, int], olga: Page
) -> None:
    olga.goto("/admin/controlplane/job/")
    row_of(olga, "waiting").get_by_role("link").first.click()
    expect(olga.get_by_text("lacks 3999 of 4000 cores").first).to_be_visible()
