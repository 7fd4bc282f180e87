"""Hostile artifacts run nothing in a real browser, neither in their preview nor as a file."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect
from pytest_django.live_server_helper import LiveServer

from controlplane.models import Attempt, Task
from tests.harness.browser import signed_in_page
from tests.integration.admin.rows import make_installation
from tests.integration.admin.test_artifacts import SCRIPT, SVG, leave
from tests.integration.admin.test_pages import address_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.browser]


def png(width: int, height: int) -> bytes:
    """An image of one colour."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return pack(">I", len(body)) + kind + body + pack(">I", zlib.crc32(kind + body))

    pixels = (b"\0" + b"\x1a\x7f\x37" * width) * height
    head = chunk(b"IHDR", pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


CONTENTS = {
    "model.bin": bytes(range(256)) * 4,
    "log.txt": b"epoch 1\tloss 0.5\n\x1b[31mred\x1b[0m\n</pre>" + SCRIPT,
    "page.html": SCRIPT,
    "plots/loss.png": png(320, 120) + SCRIPT,
    "plots/evil.svg": SVG,
    "plots/evil.png": SVG,
    "<img src=x onerror=alert(1)>": b"x",
}


@dataclass
class Visit:
    """A page of a browser in which an operator is logged in, and what it must not do."""

    page: Page
    url: str
    attempt: str
    task: str
    events: list[str] = field(default_factory=list)

    def open(self, path: str) -> Any:
        return self.page.goto(self.url + path)


@pytest.fixture
def visit(live_server: LiveServer, settings: Any, tmp_path: Path) -> Iterator[Visit]:
    settings.CELLRUN = settings.CELLRUN.model_copy(update={"artifact_root": tmp_path})
    make_installation()
    attempt = Attempt.objects.order_by("-uid")[0]
    leave(attempt, **CONTENTS)
    olga = User.objects.create_superuser("olga", password="x")
    paths = address_of(Attempt, attempt), address_of(Task, attempt.task)
    with signed_in_page(live_server.url, olga) as (page, _):
        found = Visit(page, live_server.url, *paths)
        found.page.on("dialog", lambda dialog: (found.events.append("dialog"), dialog.dismiss()))
        found.page.on("download", lambda each: found.events.append(each.suggested_filename))
        yield found


def test_pages_of_hostile_artifacts_run_nothing(visit: Visit) -> None:
    for path in (visit.task, visit.attempt):
        visit.open(path)
        expect(visit.page.locator("details.cellrun-folder")).to_have_count(2)
        hostile = visit.page.get_by_text("<img src=x onerror=alert(1)>", exact=True)
        expect(hostile).to_be_visible()
    for name in CONTENTS:
        row = visit.page.locator("details.cellrun-folder tr", has_text=name.rpartition("/")[2])
        row.get_by_role("link", name="preview").click()
        visit.page.wait_for_load_state("networkidle")
        shown = visit.page.locator("#preview")
        if name == "plots/loss.png":
            width = shown.locator("img").evaluate("image => image.naturalWidth")
            assert width == 320
        else:
            assert shown.locator("img, svg, script").count() == 0
            expect(shown.locator("pre")).to_be_visible()
    assert visit.events == []


def test_artifacts_opened_by_their_address_run_nothing(visit: Visit) -> None:
    base = visit.attempt.removesuffix("change/")
    visit.open(f"{base}images/plots/loss.png")
    assert visit.page.evaluate("document.contentType") == "image/png"
    visit.open(visit.attempt)
    for name in ("page.html", "plots/evil.svg"):
        with visit.page.expect_download() as download:
            visit.page.evaluate("address => { location.href = address }", f"{base}artifacts/{name}")
        assert download.value.path().read_bytes() == CONTENTS[name]
    assert visit.events == ["page.html", "evil.svg"]
