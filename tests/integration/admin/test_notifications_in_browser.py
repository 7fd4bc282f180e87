"""An operator adds an address and a rule, and a test arrives: forms in a real browser."""

from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_network
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect
from pytest_django.live_server_helper import LiveServer

from controlplane.models import NotificationMessage, NotificationRule
from controlplane.ticks import notifications
from tests.harness.browser import signed_in_page
from tests.harness.chromium import PHONE
from tests.integration.admin.rows import make_installation
from tests.integration.admin.test_pages import address_of
from tests.integration.callbacks.receiver import Receiver

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.browser]


def run_tick() -> None:
    """Run the tick until its tries have ended."""
    with ThreadPoolExecutor(4) as threads:
        for attempt in notifications.run(threads):
            attempt.result(60)


def test_an_operator_adds_a_rule_and_sends_a_test(live_server: LiveServer, settings: Any) -> None:
    make_installation()
    NotificationMessage.objects.all().delete()
    allowed = {"callback_allowed_networks": (ip_network("127.0.0.0/8"),)}
    settings.CELLRUN = settings.CELLRUN.model_copy(update=allowed)
    olga = User.objects.create_superuser("olga", password="x")
    opened = signed_in_page(live_server.url, olga, viewport=PHONE)
    with Receiver() as receiver, opened as (page, complaints):
        page.goto(f"{address_of(NotificationRule).replace('rule', 'address')}add/")
        page.locator("[name=name]").fill("hook")
        page.locator("[name=url]").fill(
            receiver.url("200").replace("http://", "json://ops:s3cret@")
        )
        assert page.locator("[name=url]").get_attribute("type") == "password"
        page.get_by_role("button", name="Save", exact=True).click()
        expect(page.get_by_role("heading", name="Notification address hook")).to_be_visible()
        page.goto(f"{address_of(NotificationRule)}add/")
        page.locator("[name=name]").fill("lab")
        page.locator("select[name=address]").select_option("hook")
        page.locator("select[name=about]").select_option("jobs")
        page.locator("[name=time_zone]").fill("Europe/Nowhere")
        page.locator("[name=begin]").fill("22:00")
        page.locator("[name=end]").fill("07:00")
        page.get_by_role("button", name="Save", exact=True).click()
        expect(page.get_by_text("is not a time zone, such as Europe/Berlin")).to_be_visible()
        page.locator("[name=time_zone]").fill("Europe/Berlin")
        page.get_by_role("button", name="Save", exact=True).click()
        expect(page.get_by_role("heading", name="Notification rule lab")).to_be_visible()
        expect(page.get_by_text("22:00 to 07:00 Europe/Berlin, every day")).to_be_visible()
        page.get_by_role("button", name="Send a test …").click()
        page.get_by_role("button", name="Send a test", exact=True).click()
        expect(page.get_by_text("Tests due for sending: 1")).to_be_visible()
        run_tick()
        [request] = [it for it in receiver.received if it.document["title"] == "Cellrun: test"]
        assert "address hook" in request.document["message"]
        page.goto("/admin/controlplane/notificationmessage/")
        test = page.locator("#result_list tr", has_text="Cellrun: test")
        expect(test).to_contain_text("delivered")
        expect(test).to_contain_text("hook")
        assert [text for text in complaints if "Content Security Policy" in text] == []
