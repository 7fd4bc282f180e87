"""Messages over real sockets: accepted, failing, hanging, lost and doubled."""

import json
from collections.abc import Callable
from datetime import timedelta
from email import message_from_string
from ipaddress import ip_network
from typing import Any

import pytest

from controlplane import clock
from controlplane.commands.notifications.configure import (
    RuleFields,
    delete_address,
    put_address,
    put_rule,
    reseal_addresses,
    send_test,
)
from controlplane.commands.notifications.delivery import claim_messages, record_try
from controlplane.commands.notifications.windows import collect_events, compose_windows
from controlplane.commands.state.apply import apply
from controlplane.domain.cells.sealing import NotOpened, rest_key, unseal
from controlplane.domain.notifications.messages import Message
from controlplane.domain.state.effects import Effects, RaiseAlert
from controlplane.models import Alert, AuditLine, NotificationAddress, NotificationMessage
from controlplane.outbox.notifications.sending import send
from controlplane.queries.notifications import about_address
from controlplane.spec import InvalidSpec
from tests.integration.callbacks.receiver import Receiver
from tests.integration.notifications.conftest import Mailbox, pass_at

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = "t0ps3cret"


def web(receiver: Receiver, path: str = "200") -> str:
    return receiver.url(path).replace("http://", f"json://ops:{SECRET}@")


def add(name: str, url: str) -> None:
    put_address(name=name, url=url, now=clock.now())


def add_test(name: str) -> int:
    return send_test(name=name, now=clock.now()).pk


def state_of(message_id: int) -> tuple[str, str]:
    found = NotificationMessage.objects.get(pk=message_id)
    return found.state, found.last_error


def test_a_web_service_gets_a_message(receiver: Receiver, tick: Callable[[], None]) -> None:
    add("ops", web(receiver))
    message = add_test("ops")
    tick()
    assert state_of(message) == ("delivered", "")
    (request,) = receiver.received
    assert request.document["title"] == "Cellrun: test"
    assert "address ops" in request.document["message"]


def test_a_mail_server_gets_a_message(
    mailbox: tuple[Mailbox, int], tick: Callable[[], None]
) -> None:
    kept, port = mailbox
    add("ops", f"mailto://127.0.0.1:{port}?from=cellrun@example.org&to=ops@example.org")
    message = add_test("ops")
    tick()
    assert state_of(message) == ("delivered", "")
    assert "Subject: Cellrun: test" in kept.mails[0]
    assert "To: ops@example.org" in kept.mails[0]


@pytest.mark.parametrize("options", ["", "&format=html"])
def test_markup_in_a_message_is_text_in_a_mail(mailbox: tuple[Mailbox, int], options: str) -> None:
    kept, port = mailbox
    url = f"mailto://127.0.0.1:{port}?from=cellrun@example.org&to=ops@example.org{options}"
    sent = Message("Cellrun: 2 events (night)", "job 1 <a href='https://x.test'>log in</a>\njob 2")
    assert send(url, sent, allowed=[ip_network("127.0.0.0/8")]) == ""
    parts = [part for part in message_from_string(kept.mails[0]).walk() if not part.is_multipart()]
    texts = {it.get_content_type(): bytes(it.get_payload(decode=True)).decode() for it in parts}
    assert "<a " not in texts.get("text/html", "")
    assert sent.body in texts["text/plain"].replace("\r\n", "\n")


def test_a_hanging_and_a_failing_address_delay_no_other(
    receiver: Receiver, settings: Any, tick: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    add("failing", web(receiver, "500"))
    add("hanging", web(receiver, "hang"))
    add("working", web(receiver))
    found = {name: add_test(name) for name in ("failing", "hanging", "working")}
    tick()
    assert state_of(found["working"]) == ("delivered", "")
    assert state_of(found["failing"]) == (
        "abandoned",
        "the service did not accept the message (500)",
    )
    assert state_of(found["hanging"])[0] == "abandoned"


def test_a_try_that_exceeds_its_time_is_ended(receiver: Receiver, settings: Any) -> None:
    allowed = settings.CELLRUN.callback_allowed_networks
    error = send(web(receiver, "hang") + "?rto=60", Message("a", "b"), allowed=allowed, seconds=2)
    assert error == "the service did not respond within 2 s"


@pytest.mark.parametrize("path", ["500", "404"])
def test_a_failed_message_is_tried_again_until_a_day_is_over(
    receiver: Receiver, settings: Any, path: str
) -> None:
    add("ops", web(receiver, path))
    put_rule(
        name="all",
        wanted=RuleFields("ops", {"about": "alerts", "group_wait_seconds": 0}),
        now=clock.now(),
    )
    now = clock.now() + timedelta(seconds=1)
    apply(Effects(alerts=[RaiseAlert("cell_lost", "one", "silent")]), now=now)
    assert pass_at(now, settings) == ["waiting"]
    assert pass_at(now + timedelta(seconds=7), settings) == []
    assert pass_at(now + timedelta(seconds=10), settings) == ["waiting"]
    assert not Alert.objects.filter(kind="notification_failing").exists()
    assert pass_at(now + timedelta(seconds=40), settings) == ["waiting"]
    alert = Alert.objects.get(kind="notification_failing", subject="ops")
    assert SECRET not in alert.text
    receiver.answers[path] = 200
    assert pass_at(now + timedelta(hours=1), settings) == ["delivered"]
    alert.refresh_from_db()
    assert alert.cleared_at is not None


def test_a_message_that_no_try_delivers_is_abandoned(receiver: Receiver, settings: Any) -> None:
    add("ops", web(receiver, "500"))
    put_rule(
        name="all",
        wanted=RuleFields("ops", {"about": "alerts", "group_wait_seconds": 0}),
        now=clock.now(),
    )
    now = clock.now() + timedelta(seconds=1)
    apply(Effects(alerts=[RaiseAlert("cell_lost", "one", "silent")]), now=now)
    assert pass_at(now, settings) == ["waiting"]
    assert pass_at(now + timedelta(days=1), settings) == ["abandoned"]
    # The alert about the address does not make a message to the address.
    assert Alert.objects.filter(kind="notification_failing", cleared_at=None).exists()
    assert pass_at(now + timedelta(days=1, hours=1), settings) == []


def test_the_alert_of_an_address_goes_to_other_addresses(receiver: Receiver, settings: Any) -> None:
    now = clock.now()
    for name in ("ops", "boss"):
        add(name, web(receiver))
        columns = {"about": "alerts", "group_wait_seconds": 0}
        put_rule(name=f"to-{name}", wanted=RuleFields(name, columns), now=now)
    now += timedelta(seconds=1)
    apply(Effects(alerts=[RaiseAlert("notification_failing", "ops", "no")]), now=now)
    assert pass_at(now, settings) == ["delivered"]
    assert NotificationMessage.objects.get().address.name == "boss"


def test_a_try_whose_process_dies_is_repeated(receiver: Receiver, settings: Any) -> None:
    add("ops", web(receiver))
    message, now = add_test("ops"), clock.now()
    (lost,) = claim_messages(now=now)
    assert claim_messages(now=now + timedelta(seconds=89)) == []
    assert pass_at(now + timedelta(seconds=90), settings) == ["delivered"]
    # The first process was only slow: its result comes too late to change anything.
    assert record_try(lost, "failed", now=now + timedelta(seconds=91)) == ""
    assert state_of(message) == ("delivered", "")


def test_no_text_contains_the_url(
    receiver: Receiver, tick: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    add("ops", web(receiver, "500"))
    add_test("ops")
    tick()
    for row in NotificationAddress.objects.all():
        assert SECRET not in f"{row.masked} {row.service} {bytes(row.sealed)!r}"
    lines = AuditLine.objects.values("subject", "text", "before", "after")
    assert SECRET not in json.dumps(list(lines))
    assert SECRET not in json.dumps(list(NotificationMessage.objects.values("last_error", "body")))
    written = capfd.readouterr()
    assert SECRET not in written.out + written.err


@pytest.mark.parametrize(
    "url",
    [
        "hello",
        "json://",
        f"file:///tmp/{SECRET}",
        "syslog://",
        "dbus://",
        "windows://",
        "gnome://",
        f"json://ops:{SECRET}@example.org/?attach=/etc/passwd",
        f"slack://{SECRET}",
        f"discord://1/{SECRET}?template=/etc/passwd",
        f"workflows://example.org:443/{SECRET}/abc/#?template=/etc/hosts.json",
        f"workflows://example.org:443/{SECRET}/abc/?a=b;template=/etc/hosts.json",
        f"workflows://example.org:443/{SECRET}/abc/?%20template=/etc/hosts.json",
        f"json://ops:{SECRET}@10.0.0.1/",
        f"json://ops:{SECRET}@169.254.169.254/",
        f"json://example.org/{SECRET} x",
    ],
)
def test_a_url_that_is_not_permitted_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        add("ops", url)
    assert "url" in str(refused.value)
    assert SECRET not in str(refused.value)
    assert not NotificationAddress.objects.exists()


def test_an_internal_address_is_refused_at_the_socket(receiver: Receiver) -> None:
    """A name, or another answer of DNS, does not evade the rule."""
    for host in ("127.0.0.1", "localhost"):
        url = receiver.url("200", host).replace("http://", "json://")
        assert "not public" in send(url, Message("a", "b"), allowed=[])
    assert receiver.received == []


def test_former_keys_are_retired_by_resealing(settings: Any) -> None:
    add("ops", "json://example.org")
    former = settings.CELLRUN.sealing_key or settings.SECRET_KEY
    settings.CELLRUN = settings.CELLRUN.model_copy(
        update={"sealing_key": "n" * 50, "sealing_key_fallbacks": (former,)}
    )
    assert reseal_addresses() == 1
    assert reseal_addresses() == 0
    sealed = bytes(NotificationAddress.objects.get().sealed)
    about = about_address("ops")
    assert unseal(rest_key("n" * 50), sealed, about=about) == b"json://example.org"
    with pytest.raises(NotOpened):
        unseal(rest_key(former), sealed, about=about)


def test_deleting_an_address_closes_its_alert() -> None:
    add("ops", "json://example.org")
    apply(Effects(alerts=[RaiseAlert("notification_failing", "ops", "no")]), now=clock.now())
    delete_address(name="ops", now=clock.now())
    assert Alert.objects.get().cleared_at is not None


def test_a_message_whose_tries_all_die_is_abandoned(receiver: Receiver, settings: Any) -> None:
    add("ops", web(receiver))
    columns = {"about": "alerts", "group_wait_seconds": 0}
    put_rule(name="all", wanted=RuleFields("ops", columns), now=clock.now())
    now = clock.now() + timedelta(seconds=1)
    apply(Effects(alerts=[RaiseAlert("cell_lost", "one", "silent")]), now=now)
    collect_events(now=now)
    compose_windows(now=now)
    assert len(claim_messages(now=now)) == 1
    assert len(claim_messages(now=now + timedelta(hours=23))) == 1
    assert claim_messages(now=now + timedelta(hours=25)) == []
    assert state_of(NotificationMessage.objects.get().pk)[0] == "abandoned"
    [alert] = Alert.objects.filter(kind="notification_failing", cleared_at=None)
    assert (alert.subject, alert.text[:7]) == ("ops", "2 tries")
