"""The main pages of the admin have no serious finding of axe-core: both themes, and a phone."""

from collections.abc import Iterator
from typing import Any, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.contrib.auth.models import User
from playwright.sync_api import Page, ViewportSize
from pytest_django.live_server_helper import LiveServer

from controlplane.models import (
    Alert,
    Attempt,
    Cell,
    Job,
    NotificationAddress,
    NotificationRule,
    Pool,
)
from tests.harness.browser import signed_in_page
from tests.harness.chromium import DESKTOP, PHONE
from tests.integration.admin.rows import make_installation
from tests.integration.admin.test_pages import address_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.browser]

SERIOUS = ("serious", "critical")


@pytest.fixture
def page(live_server: LiveServer) -> Iterator[Page]:
    make_installation()
    operator = User.objects.create_superuser("olga", password="x")
    with signed_in_page(live_server.url, operator) as (opened, _):
        yield opened


def addresses() -> dict[str, str]:
    """The main pages by name."""
    job = Job.objects.filter(groups__isnull=False).earliest("pk")
    alert = Alert.objects.filter(cleared_at=None).earliest("pk")
    return {
        "overview": "/admin/",
        "queue": f"{address_of(Pool, Pool.objects.earliest('pk')).removesuffix('change/')}queue/",
        "usage": "/admin/controlplane/job/usage/?by=job",
        "jobs": address_of(Job),
        "job": address_of(Job, job),
        "attempt": address_of(Attempt, Attempt.objects.earliest("pk")),
        "cells": address_of(Cell),
        "cell": address_of(Cell, Cell.objects.earliest("pk")),
        "alerts": address_of(Alert),
        "alert": address_of(Alert, alert),
        "rules": address_of(NotificationRule),
        "rule": address_of(NotificationRule, NotificationRule.objects.get()),
        "form of a rule": f"{address_of(NotificationRule)}add/",
        "form of an address": f"{address_of(NotificationAddress)}add/",
    }


@pytest.mark.parametrize(
    ("theme", "viewport"),
    [("light", DESKTOP), ("dark", DESKTOP), ("light", PHONE)],
    ids=["light", "dark", "phone"],
)
def test_main_pages_have_no_serious_finding(
    page: Page, theme: Literal["light", "dark"], viewport: ViewportSize
) -> None:
    page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    page.set_viewport_size(viewport)
    found = list[str]()
    for name, address in addresses().items():
        answer = page.goto(address)
        assert answer is not None
        assert answer.ok, address
        page.wait_for_load_state("networkidle")
        is_dark = page.evaluate("document.documentElement.classList.contains('dark')")
        assert is_dark is (theme == "dark")
        violations = Axe().run(page).response["violations"]
        found += [f"{name}: {describe(it)}" for it in violations if it["impact"] in SERIOUS]
    assert not found, "\n".join(found)


def describe(violation: dict[str, Any]) -> str:
    """The rule, and each element with what is wrong with it."""
    nodes = [
        f"{node['target']} {node['html'][:200]} {' '.join(node['failureSummary'].split())}"
        for node in violation["nodes"]
    ]
    return "\n".join((f"{violation['id']}:", *nodes))
