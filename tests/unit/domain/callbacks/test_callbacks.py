"""Callbacks without a network: waits, signatures, bodies, and which addresses are refused."""

import json
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from controlplane.domain.callbacks.addresses import receiver_of, refuse_url
from controlplane.domain.callbacks.delivery import (
    FIRST_WAIT_SECONDS,
    LONGEST_WAIT_SECONDS,
    callback_key,
    encode,
    is_delivered,
    key_text,
    nanoseconds_of,
    one_line,
    request_headers,
    wait_seconds,
)
from controlplane.domain.state.backoff import JITTER
from controlplane.spec.hosts import is_malformed_address, read_address

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
LOOPBACK = (ip_network("127.0.0.0/8"),)


@given(st.integers(1, 100_000), st.integers(1, 2**62))
def test_waits_double_from_one_second_up_to_fifteen_minutes(tries: int, callback_id: int) -> None:
    full = min(FIRST_WAIT_SECONDS * 2 ** min(tries - 1, 40), LONGEST_WAIT_SECONDS)
    wait = wait_seconds(tries, callback_id=callback_id)
    assert full * (1 - JITTER) < wait <= full


@given(st.integers(1, 2**62))
def test_number_of_tries_within_a_day_is_bounded(first_id: int) -> None:
    for callback_id in range(first_id, first_id + 3):
        at, tries = 0.0, 0
        while at <= 86_400:
            tries += 1
            at += wait_seconds(tries, callback_id=callback_id)
        assert 95 <= tries <= 145


def test_callbacks_with_the_same_tries_wait_different_times() -> None:
    waits = {wait_seconds(5, callback_id=number) for number in range(1000)}
    assert len(waits) > 990


def test_only_2xx_responses_count_as_delivered() -> None:
    assert [status for status in range(100, 600) if is_delivered(status)] == [*range(200, 300)]
    assert not is_delivered(None)


@pytest.mark.parametrize("change", ["webhook-id", "webhook-timestamp", "body", "key"])
def test_a_receiver_of_standard_webhooks_verifies_a_callback(change: str) -> None:
    at = datetime.now(UTC)
    key = callback_key("secret" * 8, user_id=7)
    body = encode({"result": "é"})
    headers = request_headers(key, body, 12, 3, at)
    receiver = Webhook(key_text(key))
    assert receiver.verify(body, headers) == {"result": "é"}
    if change == "body":
        body += b" "
    elif change == "key":
        receiver = Webhook(key_text(callback_key("secret" * 8, user_id=8)))
    else:
        headers[change] = headers[change][:-1] + str((int(headers[change][-1]) + 1) % 10)
    with pytest.raises(WebhookVerificationError):
        receiver.verify(body, headers)


def test_each_user_and_each_secret_has_a_key() -> None:
    users, secrets = (7, 8), ("secret" * 8, "Secret" * 8)
    keys = {callback_key(secret, user_id=user) for secret in secrets for user in users}
    assert len(keys) == 4


def test_instants_are_exact_to_the_microsecond() -> None:
    for step in range(1000):
        at = AT + timedelta(microseconds=step)
        assert nanoseconds_of(at) == nanoseconds_of(AT) + step * 1000


@given(st.text())
def test_any_text_is_sent_as_json(text: str) -> None:
    assert json.loads(encode({"result": text})) == {"result": text}


def test_an_error_is_one_line() -> None:
    assert one_line(" a\r\nb\0c " + "x" * 1000) == "a b c " + "x" * 494


@given(st.ip_addresses(v=4))
def test_every_notation_of_an_ipv4_address_is_parsed(address: IPv4Address) -> None:
    number, parts = int(address), address.packed
    for text in (
        str(address),
        str(number),
        hex(number),
        f"0{number:o}",
        ".".join(hex(part) for part in parts),
        ".".join(f"0{part:o}" for part in parts),
        f"{parts[0]}.{number & 0xFFFFFF}",
        f"{parts[0]}.{parts[1]}.{number & 0xFFFF}",
    ):
        assert read_address(text) == address, text


@pytest.mark.parametrize(
    "name", ["example.org", "256.1.1.1", "1.2.3.4.5", "0x", "08", "a.1", "1..2", "", "4294967296"]
)
def test_text_that_is_no_address_is_parsed_as_a_name(name: str) -> None:
    assert read_address(name) in (None, ip_address("0.0.0.0"))


@given(st.ip_addresses())
def test_valid_address_is_not_classified_as_unresolvable(
    address: IPv4Address | IPv6Address,
) -> None:
    assert not is_malformed_address(str(address))
    assert not is_malformed_address(str(int(address) & 0xFFFFFFFF))


@pytest.mark.parametrize("host", ["1.1.1.1.1", "256.1.1.1", "08", "4294967296", "0x1.1.1.1.1."])
def test_malformed_numeric_address_is_classified_as_unresolvable(host: str) -> None:
    assert is_malformed_address(host)


@pytest.mark.parametrize("host", ["example.org", "1.example.org", "task.1", "0xyz", "a"])
def test_host_name_is_not_classified_as_unresolvable(host: str) -> None:
    assert not is_malformed_address(host)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://127.0.0.1./",
        "http://user@127.0.0.1:80/",
        "http://example.org@127.0.0.1/",
        "https://LOCALHOST:8443/",
        "http://x.localhost/",
        "http://0177.1/",
        "http://0x7f.0x1/",
        "http://[::1]:80/",
        "http://[::7f00:1]/",
        "http://[0:0:0:0:0:ffff:7f00:1]/",
        "http://[2001:0:1:2:3:4:80ff:fffe]/",
        "http://100.127.255.255/",
        "http://198.18.0.1/",
        "http://240.0.0.1/",
        "http://255.255.255.255/",
        "http://[ff02::1]/",
        "http://[fec0::1]/",
        "http://[fe80::1%25eth0]/",
        "http://[64:ff9b:1::808:808]/",
        "http://[64:ff9b:1:7::1]/",
        "http://[3fff::1]/",
        "http://192.0.0.9/",
        "http://168.63.129.16/machine?comp=goalstate",
        "http://[::ffff:168.63.129.16]:32526/",
        "http://[64:ff9b::c000:9]/",
    ],
)
def test_url_with_a_literal_non_public_address_is_refused(url: str) -> None:
    assert refuse_url(url, ()) is not None


@pytest.mark.parametrize(
    ("receiver", "spellings"),
    [
        (
            "example.org:80",
            ["http://example.org", "http://EXAMPLE.org./x", "http://example.org:/?a"],
        ),
        ("example.org:443", ["https://example.org/", "http://example.org:00443/"]),
        (
            "127.0.0.1:80",
            ["http://127.0.0.1", "http://0x7f.1:80/", "http://[::ffff:7f00:1]/", "http://127.1./"],
        ),
        ("[2606:4700::1]:80", ["http://[2606:4700::1]/", "http://[2606:4700:0:0::0001]:080/"]),
        ("", [""]),
    ],
)
def test_all_notations_of_a_receiver_are_equal(receiver: str, spellings: list[str]) -> None:
    assert {receiver_of(url) for url in spellings} == {receiver}


def test_refusal_reason_does_not_contain_the_address() -> None:
    assert refuse_url("http://10.1.2.3/", ()) == "its address is not public but private"


def test_host_names_and_public_addresses_in_urls_are_accepted() -> None:
    for host in ("example.org", "127.0.0.1.example.org", "8.8.8.8", "[2606:4700::1]", "a.b:99"):
        assert refuse_url(f"https://{host}/", ()) is None


def test_allowed_network_is_accepted_in_every_notation() -> None:
    for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433"):
        assert refuse_url(f"http://{host}/", LOOPBACK) is None
    assert refuse_url("http://10.0.0.1/", LOOPBACK) is not None
