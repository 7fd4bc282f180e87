"""Addresses to which URLs of submitters may lead: the same rule for callbacks and inputs."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from controlplane.contract.addresses import refuse_address

EVERYTHING = (ip_network("0.0.0.0/0"), ip_network("::/0"))
# As the documentation of the clouds names them, and other spellings of the first.
METADATA = (
    "169.254.169.254",
    "169.254.170.2",
    "169.254.170.23",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "fd00:ec2::254",
    "fd00:ec2::23",
    "fd20:ce::254",
    "fd00:c1::a9fe:a9fe",
    "fe80::a9fe:a9fe",
    "2002:a9fe:a9fe::",
    "2002:a9fe:a9fe::1",
    "::ffff:169.254.169.254",
    "::ffff:168.63.129.16",
    "64:ff9b::a9fe:a9fe",
    "::169.254.169.254",
)


@given(st.ip_addresses())
def test_non_public_address_is_refused_unless_allowed(address: IPv4Address | IPv6Address) -> None:
    if not address.is_global:
        assert refuse_address(address, ()) is not None
    assume("metadata" not in (refuse_address(address, ()) or ""))
    assert refuse_address(address, EVERYTHING) is None


@given(st.ip_addresses(v=4))
def test_embedded_ipv4_address_is_refused_like_the_plain_one(inner: IPv4Address) -> None:
    number = int(inner)
    spelled = [
        (0xFFFF << 32) + number,
        (0x2002 << 112) + (number << 80) + 1,
        (0x0064FF9B << 96) + number,
    ]
    for outer in spelled:
        if refuse_address(inner, ()) is not None:
            assert refuse_address(IPv6Address(outer), ()) is not None


@pytest.mark.parametrize("text", METADATA)
def test_metadata_service_of_a_cloud_is_refused_even_if_its_network_is_allowed(text: str) -> None:
    address = ip_address(text)
    for allowed in ((), EVERYTHING, (ip_network(text),)):
        assert "metadata service" in (refuse_address(address, allowed) or ""), allowed


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("127.0.0.1", "loopback"),
        ("::1", "loopback"),
        ("0.0.0.0", "unspecified"),
        ("10.1.2.3", "private"),
        ("172.31.255.255", "private"),
        ("192.168.1.1", "private"),
        ("fd12::1", "private"),
        ("169.254.1.1", "link-local"),
        ("fe80::1", "link-local"),
        ("100.64.0.1", "shared (carrier-grade NAT)"),
        ("224.0.0.1", "multicast"),
        ("240.0.0.1", "reserved"),
        ("192.0.0.191", "reserved"),
    ],
)
def test_refusal_names_the_kind_of_the_address(text: str, kind: str) -> None:
    address = ip_address(text)
    assert refuse_address(address, ()) == f"its address is not public but {kind}"
    assert refuse_address(address, (ip_network(text),)) is None


@pytest.mark.parametrize("text", ["93.184.216.34", "2606:4700::1", "192.0.1.1", "172.32.0.1"])
def test_public_address_is_permitted(text: str) -> None:
    assert refuse_address(ip_address(text), ()) is None
