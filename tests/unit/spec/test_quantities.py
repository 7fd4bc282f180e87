"""Quantities are read as Kubernetes reads them, and written so that they are read the same."""

import pytest

from controlplane.spec import quantities


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        (1, 1000),
        (0.5, 500),
        ("0.5", 500),
        ("500m", 500),
        ("2", 2000),
        ("1e1", 10_000),
        ("10.0001", 10_001),
        (".5", 500),
    ],
)
def test_cpu_is_thousandths_of_a_core(text: object, millis: int) -> None:
    assert quantities.parse_cpu(text) == millis


@pytest.mark.parametrize(
    ("text", "mebibytes"),
    [
        ("64Mi", 64),
        ("1Gi", 1024),
        ("64M", 62),
        ("1G", 954),
        (67_108_864, 64),
        ("65537Ki", 65),
        ("1Ti", 2**20),
        ("0.5Gi", 512),
    ],
)
def test_memory_is_mebibytes_rounded_up(text: object, mebibytes: int) -> None:
    assert quantities.parse_memory(text) == mebibytes


@pytest.mark.parametrize(
    "text", ["", "x", "1 Gi", "1gi", "Gi", "1e999", "0x10", "1" * 60, True, None, [], "1_000", "١"]
)
def test_malformed_quantity_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="must be a quantity like"):
        quantities.parse_memory(text)


@pytest.mark.parametrize("text", [-1, "-1", "-0.5", "-64Mi"])
def test_a_negative_quantity_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        quantities.parse_cpu(text)


def test_error_has_the_limits() -> None:
    with pytest.raises(ValueError, match=r"at least 0\.01 and at most 100000"):
        quantities.parse_cpu("1m")
    with pytest.raises(ValueError, match="at least 6Mi and at most 1Pi"):
        quantities.parse_memory("2Pi")
    with pytest.raises(ValueError, match="at least 0 and at most 1Pi"):
        quantities.parse_disk("1E")
    with pytest.raises(ValueError, match="at least 1Mi"):
        quantities.parse_shm(0)


@pytest.mark.parametrize("millis", [10, 500, 1000, 1234, 2000, 100_000])
def test_cpu_round_trips(millis: int) -> None:
    assert quantities.parse_cpu(quantities.format_cpu(millis)) == millis


@pytest.mark.parametrize("mebibytes", [6, 64, 1024, 1025, 2**20, 2**30])
def test_memory_round_trips(mebibytes: int) -> None:
    assert quantities.parse_memory(quantities.format_mib(mebibytes)) == mebibytes
