"""Constraints on labels and placement tags: each operator, what a missing label is, in words."""

import pytest

from controlplane.domain.constraints import Constraint, Operator, Tags, is_met
from controlplane.spec.placing import is_number

LABELS = {"zone": "a", "gb": "64", "version": "1.10", "empty": ""}


@pytest.mark.parametrize(
    ("key", "operator", "values", "met"),
    [
        ("zone", "eq", ["a"], True),
        ("zone", "eq", ["A"], False),
        ("zone", "ne", ["a"], False),
        ("zone", "ne", ["b"], True),
        ("zone", "in", ["b", "a"], True),
        ("zone", "in", ["b", "c"], False),
        ("zone", "exists", [], True),
        ("zone", "not_exists", [], False),
        ("empty", "exists", [], True),
        ("empty", "eq", [""], True),
        ("gb", "gt", ["63.5"], True),
        ("gb", "gt", ["64"], False),
        ("gb", "ge", ["64.0"], True),
        ("gb", "lt", ["65"], True),
        ("gb", "lt", ["64"], False),
        ("gb", "le", ["+64"], True),
        ("gb", "le", ["-64"], False),
        ("gb", "eq", ["64.0"], False),  # equal as texts, greater or less as numbers
        ("version", "lt", ["1.9"], True),
    ],
)
def test_operator_compares_the_label_value(
    key: str, operator: str, values: list[str], met: bool
) -> None:
    assert is_met(Constraint(key, Operator(operator), tuple(values)), LABELS) is met


@pytest.mark.parametrize(
    ("operator", "met"),
    [
        ("eq", False),
        ("ne", True),
        ("in", False),
        ("exists", False),
        ("not_exists", True),
        ("gt", False),
        ("ge", False),
        ("lt", False),
        ("le", False),
    ],
)
def test_missing_label_meets_only_ne_and_not_exists(operator: str, met: bool) -> None:
    constraint = Constraint("rack", Operator(operator), ("0",))
    assert is_met(constraint, LABELS) is met


@pytest.mark.parametrize("operator", ["gt", "ge", "lt", "le"])
@pytest.mark.parametrize("key", ["zone", "empty"])
def test_non_numeric_label_meets_no_numeric_comparison(operator: str, key: str) -> None:
    assert not is_met(Constraint(key, Operator(operator), ("0",)), LABELS)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("0", True),
        ("-1.5", True),
        ("+007", True),
        ("", False),
        ("1.", False),
        (".5", False),
        ("1e3", False),
        ("nan", False),
        ("inf", False),
        ("1_000", False),
        (" 1", False),
        ("1\n", False),
        ("٣", False),
    ],
)
def test_a_number_is_digits_with_a_sign_and_a_fraction(text: str, verdict: bool) -> None:
    assert is_number(text) is verdict


@pytest.mark.parametrize(
    ("operator", "values", "words"),
    [
        ("eq", ["a"], "zone = a"),
        ("ne", ["a"], "zone != a"),
        ("in", ["a", "b"], "zone in (a, b)"),
        ("exists", [], "zone exists"),
        ("not_exists", [], "zone does not exist"),
        ("gt", ["1"], "zone > 1"),
        ("ge", ["1"], "zone >= 1"),
        ("lt", ["1"], "zone < 1"),
        ("le", ["1"], "zone <= 1"),
    ],
)
def test_constraint_as_text_and_as_a_stored_document(
    operator: str, values: list[str], words: str
) -> None:
    constraint = Constraint("zone", Operator(operator), tuple(values), required=False)
    assert str(constraint) == words
    kept = constraint.as_dict()
    assert kept == {"key": "zone", "op": operator, "values": values, "required": False}
    assert Constraint.read(kept) == constraint


@pytest.mark.parametrize(
    ("written", "named", "admitted"),
    [
        ([], [], True),
        ([], ["a"], False),
        (["a"], [], False),
        (["a"], ["a"], True),
        (["a"], ["a", "b"], False),
        (["a?"], [], True),
        (["a?"], ["a"], True),
        (["a?"], ["b"], False),
        (["a", "b?"], ["b"], False),
        (["a", "b?"], ["b", "a"], True),
        (["a", "b?"], ["a", "a"], True),
    ],
)
def test_cell_admits_requests_with_all_required_and_only_known_tags(
    written: list[str], named: list[str], admitted: bool
) -> None:
    assert Tags.read(written).admit(named) is admitted
