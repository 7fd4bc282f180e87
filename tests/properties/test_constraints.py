"""Constraints and tags agree with a plain restatement of their text, for any labels."""

from collections.abc import Mapping, Sequence
from fractions import Fraction

from hypothesis import example, given
from hypothesis import strategies as st

from controlplane.domain.constraints import (
    Constraint,
    Operator,
    Tags,
    is_met,
)
from controlplane.spec.placing import NUMERIC, WITHOUT_VALUE

KEYS = st.sampled_from(["zone", "gb", "rack"])
# Beyond 2**53 not every integer is a float.
LARGE = st.integers(2**53 - 2, 2**53 + 2) | st.integers(10**30, 10**30 + 2)
NUMBERS = (st.integers(-20, 20) | LARGE).map(str) | st.decimals(
    -20, 20, places=2, allow_nan=False, allow_infinity=False
).map(lambda number: f"{number:f}")
VALUES = NUMBERS | st.sampled_from(["", "a", "b", "1.", ".5", "1e1", "+3", "007", "inf", "٣"])
LABELS = st.dictionaries(KEYS, VALUES, max_size=3)


@st.composite
def constraints(draw: st.DrawFn) -> Constraint:
    """Any constraint that a job may have."""
    operator = draw(st.sampled_from(Operator))
    if operator in WITHOUT_VALUE:
        values: list[str] = []
    elif operator is Operator.IN:
        values = draw(st.lists(VALUES, min_size=1, max_size=4))
    else:
        values = [draw(NUMBERS if operator in NUMERIC else VALUES)]
    return Constraint(draw(KEYS), operator, tuple(values), draw(st.booleans()))


def as_number(text: str) -> Fraction | None:
    """Digits, maybe with a sign before and a fraction behind."""
    unsigned = text[1:] if text[:1] in ("+", "-") else text
    whole, point, fraction = unsigned.partition(".")
    parts = [whole, fraction] if point else [whole]
    if not all(part and set(part) <= set("0123456789") for part in parts):
        return None
    return Fraction(text)


def is_met_as_documented(constraint: Constraint, labels: Mapping[str, str]) -> bool:
    """Compare as docs/job-spec.md describes, operator by operator."""
    there, label = constraint.key in labels, labels.get(constraint.key, "")
    if constraint.op.value == "exists":
        return there
    if constraint.op.value == "not_exists":
        return not there
    if constraint.op.value == "ne":
        return not there or label != constraint.values[0]
    if not there:
        return False
    if constraint.op.value in ("eq", "in"):
        return any(label == value for value in constraint.values)
    found, limit = as_number(label), as_number(constraint.values[0])
    if found is None or limit is None:
        return False
    return {
        "gt": found > limit,
        "ge": found >= limit,
        "lt": found < limit,
        "le": found <= limit,
    }[constraint.op.value]


@given(constraints(), LABELS)
@example(Constraint("gb", Operator.GT, ("1.9",)), {"gb": "1.10"})
@example(Constraint("gb", Operator.LE, ("3",)), {"gb": "+3"})
@example(Constraint("gb", Operator.GT, ("9007199254740992",)), {"gb": "9007199254740993"})
def test_constraint_is_met_as_documented(constraint: Constraint, labels: dict[str, str]) -> None:
    assert is_met(constraint, labels) is is_met_as_documented(constraint, labels)


@given(constraints(), LABELS)
def test_constraint_round_trips_and_its_opposite_is_not_met(
    constraint: Constraint, labels: dict[str, str]
) -> None:
    assert Constraint.read(constraint.as_dict()) == constraint
    opposites = {
        Operator.EXISTS: Operator.NOT_EXISTS,
        Operator.EQ: Operator.NE,
    }
    if constraint.op in opposites:
        opposite = Constraint(constraint.key, opposites[constraint.op], constraint.values)
        assert is_met(constraint, labels) is not is_met(opposite, labels)


NAMES = st.sampled_from(["a", "b", "c", "d"])


def admits(written: Sequence[str], named: Sequence[str]) -> bool:
    """Every tag without ? is named, and every named one stands there, with or without ?."""
    for tag in written:
        if not tag.endswith("?") and tag not in named:
            return False
    return all(tag in written or f"{tag}?" in written for tag in named)


@given(
    st.dictionaries(NAMES, st.booleans()).map(
        lambda tags: [name if required else f"{name}?" for name, required in tags.items()]
    ),
    st.lists(NAMES, max_size=4),
)
def test_tags_admit_as_documented(written: list[str], named: list[str]) -> None:
    assert Tags.read(written).admit(named) is admits(written, named)
