"""Which subnets a cell chooses for networks of gangs, when its engine has none left to give."""

from ipaddress import IPv4Network as Network
from itertools import islice, pairwise
from pathlib import Path

import pytest

from workers.drivers.docker import subnets
from workers.drivers.docker.subnets import free_subnets

HEAD = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
DEFAULT_ROUTE = "eth0\t00000000\t0102000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"


def route(destination: str, mask: str) -> str:
    """Write a route as the kernel does: hexadecimal, lowest byte first."""

    def little(address: str) -> str:
        return bytes(map(int, reversed(address.split(".")))).hex().upper()

    return f"eth0\t{little(destination)}\t00000000\t0001\t0\t0\t0\t{little(mask)}\t0\t0\t0\n"


def network(*subnets: str) -> dict[str, object]:
    return {"IPAM": {"Config": [{"Subnet": subnet} for subnet in subnets]}}


@pytest.fixture
def routes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "route"
    file.write_text(HEAD + DEFAULT_ROUTE)
    monkeypatch.setattr(subnets, "_ROUTES", file)
    return file


@pytest.mark.usefixtures("routes")
def test_subnets_are_disjoint_and_hold_gangs_of_a_thousand() -> None:
    found = list(free_subnets([]))
    assert len(found) == 256
    assert all(len(list(one.hosts())) > 1000 for one in found)
    assert not any(one.overlaps(other) for one, other in pairwise(found))


@pytest.mark.usefixtures("routes")
def test_subnets_of_the_engine_are_left_out() -> None:
    others = [network("fd00::/64", "10.208.0.0/24"), network("10.208.4.0/22"), network(""), {}]
    assert next(free_subnets(others)) == Network("10.208.8.0/22")


def test_subnets_that_this_machine_routes_elsewhere_are_left_out(routes: Path) -> None:
    routes.write_text(
        HEAD
        + DEFAULT_ROUTE
        + route("10.208.2.0", "255.255.255.0")
        + route("10.209.0.0", "255.255.0.0")
        + route("10.0.0.0", "255.255.0.0")
    )
    found = list(free_subnets([]))
    assert found[0] == Network("10.208.4.0/22")
    assert not any(one.overlaps(Network("10.209.0.0/16")) for one in found)
    assert len(found) == 256 - 1 - 64


def test_no_subnet_is_free_when_routes_cover_all(routes: Path) -> None:
    routes.write_text(HEAD + route("10.0.0.0", "255.0.0.0"))
    assert list(islice(free_subnets([]), 1)) == []


def test_unreadable_routes_exclude_no_subnet(routes: Path) -> None:
    routes.unlink()
    assert len(list(free_subnets([]))) == 256
