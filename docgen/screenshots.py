"""Take the screenshots of docs/images from a running stack.

    make up                                  # in another terminal
    . .cellrun/run/env
    .venv/bin/python -m examples.run         # something to see
    .venv/bin/python -m docgen.screenshots

Requires a Chromium, which `make tools` installs as root on Debian.
"""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import HttpCredentials, Page, ViewportSize, sync_playwright

from cellrun import Session, connect
from cellrun.api.polling import PollInterval, beats

FOLDER = Path(__file__).parents[1] / "docs" / "images"
SLEEPERS = {
    "name": "sleepers",
    "image": "cellrun/demo:latest",
    "command": ["sleep", "60"],
    "replicas": 12,
    "resources": {"cpu": 0.25, "memory": "512Mi"},
}
"""More tasks than two small cells can hold, so that some run and some wait."""

SIZE = ViewportSize(width=1360, height=850)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def main() -> int:
    """Take all screenshots; return 2 if a stack or a browser is missing."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    missing = [name for name in NAMES if not os.environ.get(name)]
    if missing or browser is None:
        sys.stderr.write(f"missing: {', '.join(missing) or 'a Chromium'}; see {__file__}\n")
        return 2
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        user, _, password = os.environ["FLOWER_BASIC_AUTH"].partition(":")
        login: HttpCredentials = {"username": user, "password": password}
        page = started.new_page(viewport=SIZE, color_scheme="light", http_credentials=login)
        log_in(page)
        with connect() as session:
            job = session.submit(SLEEPERS)
            wait_until_running(session, job["id"])
            for name, open_page in PICTURES.items():
                open_page(page)
                page.wait_for_load_state("networkidle")
                page.screenshot(path=str(FOLDER / f"{name}.png"))
                sys.stdout.write(f"docs/images/{name}.png\n")
            session.cancel_job(job["id"], reason="the pictures are taken", force=True)
        started.close()
    return 0


NAMES = ("CELLRUN_URL", "CELLRUN_TOKEN", "CELLRUN_ADMIN_USER", "CELLRUN_ADMIN_PASSWORD")
NAMES += ("FLOWER_BASIC_AUTH",)


def wait_until_running(session: Session, job_id: int) -> None:
    """Return once some tasks of the job run and the others wait."""
    for _ in beats(PollInterval(60.0), "tasks that run"):
        if {task["state"] for task in session.tasks(job_id)} == {"RUNNING", "PENDING"}:
            return


def log_in(page: Page) -> None:
    """Log in to the admin."""
    page.goto(f"{os.environ['CELLRUN_URL']}/admin/")
    page.fill("input[name=username]", os.environ["CELLRUN_ADMIN_USER"])
    page.fill("input[name=password]", os.environ["CELLRUN_ADMIN_PASSWORD"])
    page.click("button[type=submit]")
    page.wait_for_load_state("networkidle")


def admin(path: str) -> Callable[[Page], None]:
    """Return a function that opens a page of the admin."""
    return lambda page: void(page.goto(f"{os.environ['CELLRUN_URL']}/admin/{path}"))


def first(listing: str, text: str) -> Callable[[Page], None]:
    """Return a function that opens the newest row of `listing` that contains `text`."""

    def open_it(page: Page) -> None:
        admin(listing)(page)
        row = page.locator("#result_list tbody tr", has_text=text).first
        row.locator("th a, td a").first.click()

    return open_it


def flower(page: Page) -> None:
    """Open Flower's list of attempts by a link of the admin."""
    admin("controlplane/attempt/")(page)
    address = page.locator("#result_list a", has_text="Flower").first.get_attribute("href") or ""
    page.goto(address.split("/task/")[0] + "/tasks")
    page.fill("input[type=search]", "worker:cell@")
    page.wait_for_function("!document.querySelector('#tasks-table').innerText.includes('ticks')")


def void(_: object) -> None:
    """Drop what a call returns."""


PICTURES: dict[str, Callable[[Page], None]] = {
    "admin-overview": admin(""),
    "admin-job": first("controlplane/job/", "wordcount"),
    "admin-task": first("controlplane/task/", "retry"),
    "admin-cell": first("controlplane/cell/", "cell-1"),
    "admin-queue": admin("controlplane/pool/queue/"),
    "admin-usage": admin("controlplane/job/usage/?by=job"),
    "flower": flower,
}

if __name__ == "__main__":
    sys.exit(main())
