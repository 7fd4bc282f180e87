"""Each response has a Content-Security-Policy that allows no inline script, and pages obey it."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.test import Client
from playwright.sync_api import Page, expect
from pytest_django.live_server_helper import LiveServer

from tests.harness.browser import signed_in_page
from tests.integration.admin.rows import make_installation

pytestmark = [pytest.mark.django_db(transaction=True)]


def directives(answer: object) -> dict[str, list[str]]:
    text = answer.headers["Content-Security-Policy"]  # type: ignore[attr-defined]
    return {words[0]: words[1:] for words in map(str.split, text.split(";"))}


@pytest.mark.parametrize(
    "path",
    [
        "/admin/login/",
        "/admin/",
        "/api/docs/",
        "/api/schema/",
        "/healthz",
        "/api/v1/jobs",
        "/api/v1/none",
        "/none",
        "/static/controlplane/admin.css",
    ],
)
def test_no_response_allows_inline_scripts(path: str) -> None:
    found = directives(Client().get(path))
    scripts = found.get("script-src", found["default-src"])
    assert set(scripts) <= {"'self'", "'unsafe-eval'", "'none'"}
    assert found["frame-ancestors"] == ["'none'"]


OWN = {"'self'", "'none'"}
MORE = {"script-src": {"'unsafe-eval'"}, "style-src": {"'unsafe-inline'"}, "img-src": {"data:"}}
"""Sources beside web itself."""


def test_pages_load_from_web_only_and_responses_of_the_api_load_nothing() -> None:
    for path in ("/admin/login/", "/api/docs/", "/healthz", "/none"):
        found = directives(Client().get(path))
        assert "default-src" in found
        for name, sources in found.items():
            assert set(sources) <= OWN | MORE.get(name, set()), (path, name)
    for path in ("/api/v1/jobs", "/api/v1/none"):
        found = directives(Client().get(path))
        assert found["default-src"] == ["'none'"]
        assert "sandbox" in found
        assert not {name for name in found if name.endswith("-src")} - {"default-src"}


@dataclass
class Visit:
    """A page of a browser, the paths of the site, and the violations that the browser reports."""

    page: Page
    url: str
    paths: list[str]
    refused: list[str]

    def open(self, path: str) -> None:
        self.page.goto(self.url + path, wait_until="load")

    def note(self, text: str) -> None:
        if "Content Security Policy" in text:
            self.refused.append(f"{self.page.url}: {text}")


@pytest.fixture
def visit(live_server: LiveServer) -> Iterator[Visit]:
    make_installation()
    olga = User.objects.create_superuser("olga", password="x")
    login = Client()
    login.force_login(olga)
    # No query is possible while the browser's event loop runs.
    paths = list(all_paths(login.get("/admin/").wsgi_request))
    with signed_in_page(live_server.url, olga) as (page, _):
        found = Visit(page, live_server.url, paths, [])
        found.page.on("console", lambda message: found.note(message.text))
        found.page.on("pageerror", lambda error: found.refused.append(str(error)))
        yield found


def all_paths(request: HttpRequest) -> Iterator[str]:
    """The list, a row and the form of each model, and other pages; the login is the last."""
    yield from ("/admin/", "/account/password/", "/api/docs/")
    for model, pages in admin.site._registry.items():
        base = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
        row = model._default_manager.first()
        assert row is not None
        yield from (base, f"{base}{row.pk}/change/")
        if pages.has_add_permission(request):
            yield f"{base}add/"
    yield "/admin/login/?next=/admin/"


@pytest.mark.browser
def test_pages_load_without_violations(visit: Visit) -> None:
    for path in visit.paths[:-1]:
        visit.open(path)
    visit.page.context.clear_cookies()
    visit.open(visit.paths[-1])
    expect(visit.page.locator("input[name=password]")).to_be_visible()
    assert visit.refused == []


@pytest.mark.browser
def test_an_injected_inline_script_does_not_run(visit: Visit) -> None:
    visit.open("/admin/")
    visit.page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.injected = true";
            document.body.append(script);
        }"""
    )
    assert visit.page.evaluate("window.injected") is None
    assert len(visit.refused) == 1
