"""JSON and YAML become plain values, or are refused; nothing small describes something huge."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.spec import InvalidSpec, UnreadableDocument, parse_job, read_document
from controlplane.spec.documents import MAX_DEPTH, check_plain, find_value_fault, guess_language


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: yes", "yes"),
        ("a: on", "on"),
        ("a: true", True),
        ("a: 12:30", "12:30"),
        ("a: 2030-01-01", "2030-01-01"),
        ("a: 010", 10),
        ("a: 0x1f", 31),
        ("a: 1e3", 1000.0),
        ("a: '1'", "1"),
        ("a: ~", None),
        ("a:", None),
        ("a: [1, x]", [1, "x"]),
        ("a: |\n  two\n  lines\n", "two\nlines\n"),
        ("a: .inf", ".inf"),
        ('a: "\\u00e9"', "é"),
    ],
)
def test_yaml_is_read_by_its_core_schema(text: str, value: Any) -> None:
    assert read_document(text, "yaml") == {"a": value}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: &x 1\nb: *x", "aliases"),
        ("a: !!python/object:os.system x", "tags"),
        ("a: !!binary aGk=", "tags"),
        ("a: 1\na: 2", "occurs twice"),
        ("? [a]\n: 1", "not a plain text"),
        ("<<: *base", "aliases"),
        ("--- 1\n--- 2", "more than one YAML document"),
        ("a: b: c", "line 1, column 5"),
        ("a: [1", "not YAML"),
        ("a: \x01", "not YAML"),
        ("[" * 100, "nested lists"),
    ],
)
def test_unsupported_yaml_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(UnreadableDocument, match=why):
        read_document(text, "yaml")


def test_yaml_alias_bomb_is_refused_before_expansion() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(UnreadableDocument, match="aliases"):
        read_document("\n".join(lines), "yaml")


def test_a_document_of_very_many_values_is_refused() -> None:
    with pytest.raises(UnreadableDocument, match="more than 500000 values"):
        read_document("[" + "1," * 600_000 + "]", "yaml")
    with pytest.raises(UnreadableDocument, match="more than 500000 values"):
        check_plain([1] * 600_000)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ("{'a': 1}", "not JSON"),
        ('{"a": 1} x', "line 1, column 10"),
        ('{"a": 1, "a": 2}', "occurs twice"),
        ('{"a": NaN}', "NaN is not a number"),
        ('{"a": -Infinity}', "Infinity is not a number"),
        ("[" * 100_000, "nested too deeply"),
        ("1" * 5_000, "a number that is too long"),
        (b"\xff\xfe", "not UTF-8 at byte 0"),
        ("", "not JSON"),
    ],
)
def test_invalid_json_is_refused_with_the_reason(text: str | bytes, why: str) -> None:
    with pytest.raises(UnreadableDocument, match=why):
        read_document(text, "json")


@pytest.mark.parametrize("value", ["\x00", {"a": ["\x00"]}, {"\x00": 1}, "\ud800", {"\udfff": 1}])
def test_texts_that_cannot_be_stored_are_refused(value: Any) -> None:
    with pytest.raises(UnreadableDocument, match="a text contains"):
        check_plain(value)


def test_nesting_depth_is_limited() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    check_plain(value)
    with pytest.raises(UnreadableDocument, match="nested lists"):
        check_plain([value])


def test_deeply_nested_document_is_refused_without_a_path() -> None:
    value: Any = "a\0"
    for _ in range(5_000):
        value = {"a": value}
    assert find_value_fault(value) is None
    with pytest.raises(InvalidSpec, match="more than 64 nested lists and mappings"):
        parse_job({"name": "a", "image": "x", "env": value})


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"a": [1.0, float("inf")]}, (("a", 1), "a number is not finite")),
        ({5: {"b": "\0"}}, ((5, "b"), "a text contains a NUL character")),
        ({"a": {"\0": 1}}, (("a",), "a key contains a character that cannot be stored")),
        ({"a": [1.0, "b", None]}, None),
    ],
)
def test_value_that_cannot_be_stored_is_named_by_its_path(value: Any, found: Any) -> None:
    assert find_value_fault(value) == found


def test_language_is_detected_from_the_first_character() -> None:
    assert guess_language(' \n{"a": 1}') == "json"
    assert guess_language("a: 1") == "yaml"


@settings(deadline=None)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(10**20), 10**20)
        | st.text("ab1: ~#-\n'\"é", max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text("abc:", max_size=3), inner, max_size=3)
        ),
        max_leaves=10,
    )
)
def test_json_is_parsed_equally_as_json_and_yaml(value: Any) -> None:
    text = json.dumps(value)
    assert read_document(text, "json") == value
    assert read_document(text, "yaml") == value
