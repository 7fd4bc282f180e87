"""Bulk operations in a real browser: count, start, and progress that appears by itself."""

import re

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect
from pytest_django.live_server_helper import LiveServer

from controlplane import clock
from controlplane.commands.bulk import run_bulk_page
from controlplane.contract.states import TaskState as S
from controlplane.models import BulkOperation, Job, Pool, Project
from tests.harness.browser import signed_in_page
from tests.harness.chromium import DESKTOP, PHONE, scroll_width
from tests.integration.admin.rows import make_installation, make_job

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.browser]


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_jobs_are_counted_cancelled_and_the_progress_follows(
    live_server: LiveServer, viewport: dict[str, int]
) -> None:
    make_installation()
    BulkOperation.objects.all().delete()
    Job.objects.update(name="other")
    owner = User.objects.get(username="ann")
    pool = Pool.objects.get(name="default")
    for _ in range(3):
        make_job(Project.objects.get(), pool, owner, states=[S.PENDING])
    operator = User.objects.create_superuser("olga", password="x")
    with signed_in_page(live_server.url, operator, viewport=viewport) as (page, complaints):
        page.goto("/admin/controlplane/bulkoperation/add/")
        page.get_by_label("action").select_option("cancel")
        page.get_by_label("name", exact=True).fill("sweep")
        page.get_by_label("running").check()
        page.get_by_role("button", name="Count jobs").click()
        expect(page.get_by_role("heading", name="3 jobs to cancel")).to_be_visible()
        expect(page).to_have_url(re.compile("name=sweep"))
        assert scroll_width(page) == viewport["width"]
        page.get_by_label("reason").fill("wrong image")
        page.get_by_role("button", name="Start: cancel 3 jobs").click()
        progress = page.locator("#live .cellrun-facts")
        expect(progress).to_contain_text("0 of 3")
        run_bulk_page(BulkOperation.objects.get().pk, now=clock.now(), is_over=lambda: False)
        expect(progress).to_contain_text("3 of 3", timeout=30_000)
        assert scroll_width(page) == viewport["width"]
        page.goto("/admin/controlplane/bulkoperation/")
        expect(page.get_by_role("link", name="wrong image")).to_be_visible()
    assert complaints == []
    operation = BulkOperation.objects.get()
    assert (operation.done, operation.filter["states"]) == (3, ["RUNNING"])
