"""Amounts that quotas and pools limit are written and read in the words of jobs and of cells."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.spec import InvalidSpec
from controlplane.spec.limits import MAX_LIMIT, LimitedResources, Tokens, in_order, written
from controlplane.spec.parsing import parse_part

AMOUNTS = st.fixed_dictionaries(
    {},
    optional={
        "cpu_millis": st.just(0) | st.integers(10, 100_000_000),
        "memory_mib": st.integers(0, 1 << 30),
        "disk_mib": st.integers(0, 1 << 30),
        "gpu": st.integers(0, MAX_LIMIT),
        "licence": st.integers(0, MAX_LIMIT),
        "a.b-c_d": st.integers(0, MAX_LIMIT),
    },
)


@given(AMOUNTS)
def test_amounts_round_trip(amounts: dict[str, int]) -> None:
    assert parse_part(LimitedResources, written(amounts)).amounts() == amounts


def test_amounts_are_written_in_readable_units_and_a_fixed_order() -> None:
    amounts = {"a": 1, "licence": 2, "disk_mib": 100, "cpu_millis": 500, "memory_mib": 65536}
    assert list(written(amounts).items()) == [
        ("cpu", "0.5"),
        ("memory", "64Gi"),
        ("disk", "100Mi"),
        ("a", 1),
        ("licence", 2),
    ]
    assert in_order(["x", "gpu", "x", "cpu_millis"]) == ["cpu_millis", "gpu", "x"]


def test_null_means_unlimited() -> None:
    given_amounts = {"cpu": None, "memory": None, "memory_mib": 5, "licence": None, "gpu": 0}
    assert parse_part(LimitedResources, given_amounts).amounts() == {"memory_mib": 5, "gpu": 0}


@pytest.mark.parametrize(
    ("tokens", "fault"),
    [
        ({"gpu": 1}, "gpu is a reserved name"),
        ({"Licence": 1}, "'Licence': a name must match"),
        ({"": 1}, "'': a name must match"),
        ({"licence\n": 1}, "a name must match"),
        ({"licence": None}, "licence: must be a whole number"),
        ({f"t{n}": 1 for n in range(65)}, "must have at most 64 names, not 65"),
    ],
)
def test_malformed_tokens_are_refused(tokens: dict[str, int], fault: str) -> None:
    with pytest.raises(InvalidSpec, match=fault):
        parse_part(Tokens, tokens)
