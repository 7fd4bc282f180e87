"""Mutations of valid request bodies: of their values, their text and their bytes."""

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from random import Random
from typing import Any

import yaml

HOSTILE_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    0.5,
    -0.0,
    2**31,
    2**63,
    -(2**63) - 1,
    10**30,
    10**400,
    1e308,
    1e-308,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    " ",
    "\x00",
    "a\x00b",
    "\ud800",
    "\udfff\ud800",
    "\ufeff",
    "\u202e",
    "x" * 70_000,
    "€" * 300,
    "1",
    "1e999",
    "-1",
    "NaN",
    "1Pi",
    "9" * 400 + "Gi",
    "../../etc/passwd",
    "/",
    "//",
    "/a/../b",
    "%00",
    "%s%n",
    "{}",
    "$(HOME)",
    "${{ x }}",
    "'; DROP TABLE job; --",
    "http://[::1",
    "http://a:99999999/",
    "https://user:password@host/\r\nX: y",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59-23:59",
    "2026-02-30T00:00:00Z",
    "00000000-0000-0000-0000-000000000000",
    "default",
    "default/default",
    [],
    {},
    [[]],
    [{}],
    [None],
    {"": None},
    {"\x00": 1},
    {"a": {"b": {"c": []}}},
    ["a"] * 2_000,
    {f"k{n}": n for n in range(2_000)},
    list(range(70)),
)
HOSTILE_KEYS = (
    "",
    "\x00",
    "\ud800",
    "__proto__",
    "__class__",
    "id",
    "x" * 5_000,
    "name ",
    "é",
    "$",
)
JSON_TYPES = ("application/json", "application/json; charset=utf-8", "APPLICATION/JSON")
YAML_TYPES = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")
OTHER_TYPES = (
    "",
    "text/plain",
    "application/xml",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "application/octet-stream",
    "application/json; charset=utf-16",
    "application/",
    "/",
    "*/*",
    "\x7f",
)
INSERTED_BYTES = (
    b"\x00",
    b"\xff",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"\xf8\x88\x80\x80\x80",
    b"\xef\xbb\xbf",
    b"\\u0000",
    b"\\ud800",
    b"\\",
    b'"',
    b"{",
    b"[",
    b"]}",
    b"\r\n",
    b"\t",
    b"#",
    b": ",
    b"- ",
    b"&a ",
    b"*a ",
    b"!!python/object:os.system ",
    b"!x ",
    b"%YAML 9.9\n",
    b"--- ",
    b"... ",
    b"<<: ",
    b"? ",
    b"| ",
    b"1e99999",
    b"9" * 5_000,
)
ALIAS_BOMB = "a: &a [x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}]\n" for n in range(20)
)


@dataclass(frozen=True, slots=True)
class Body:
    """The content of a request, and the media type that it declares."""

    content: bytes
    media_type: str


def mutate_body(random: Random, document: Any) -> Body:
    """Return a body that differs from the valid `document` in one or several places."""
    document = deepcopy(document)
    for _ in range(random.choice((0, 1, 1, 1, 2, 4))):
        document = _change_value(random, document)
    if random.random() < 0.6:
        content, media_type = _write_json(random, document), random.choice(JSON_TYPES)
    else:
        content, media_type = _write_yaml(random, document), random.choice(YAML_TYPES)
    for _ in range(random.choice((0, 0, 0, 1, 1, 3))):
        content = _change_bytes(random, content)
    if random.random() < 0.03:
        content = _replace_content(random)
    if random.random() < 0.05:
        media_type = random.choice((*OTHER_TYPES, *JSON_TYPES, *YAML_TYPES))
    return Body(content, media_type)


def _places_of(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the place of each value inside `value`, which is the first one."""
    yield place
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _places_of(item, (*place, key))
    elif isinstance(value, list) and len(value) < 100:
        for index, item in enumerate(value):
            yield from _places_of(item, (*place, index))


def _change_value(random: Random, document: Any) -> Any:
    """Change, remove, wrap, move or repeat one value of the document, or add one."""
    places = list(_places_of(document))
    place = random.choice(places)
    value = _value_at(document, place)
    kind = random.randrange(8)
    if kind == 0 and place:
        del _value_at(document, place[:-1])[place[-1]]
        return document
    if kind == 1 and isinstance(value, dict):
        value[random.choice((*HOSTILE_KEYS, *value))] = random.choice(HOSTILE_VALUES)
        return document
    if kind == 2 and isinstance(value, list):
        value.extend(deepcopy(value) * random.choice((1, 2, 100)))
        return document
    if kind == 3:
        return _with(document, place, random.choice(([value], {"value": value}, str(value))))
    if kind == 4:
        return _with(document, place, deepcopy(_value_at(document, random.choice(places))))
    if kind == 5 and isinstance(value, int | float):
        factor = random.choice((-1, 10, 1_000_003, 2**40))
        return _with(document, place, value * factor + random.choice((0, 1, -1)))
    if kind == 6 and isinstance(value, str):
        part = random.choice(("\x00", "\n", " ", "é", "/", ":", "x" * 300, "\ud83d"))
        at = random.randint(0, len(value))
        return _with(document, place, value[:at] + part + value[at:])
    return _with(document, place, deepcopy(random.choice(HOSTILE_VALUES)))


def _value_at(document: Any, place: tuple[Any, ...]) -> Any:
    for step in place:
        document = document[step]
    return document


def _with(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    """Return the document with `value` at a place, which may be the whole document."""
    if not place:
        return value
    _value_at(document, place[:-1])[place[-1]] = value
    return document


def _write_json(random: Random, document: Any) -> bytes:
    text = json.dumps(
        document, ensure_ascii=random.random() < 0.7, indent=random.choice((None, None, 1))
    )
    if random.random() < 0.1 and text.startswith("{") and len(text) > 2:
        # The same key a second time, as no writer of JSON would send it.
        text = "{" + text[1:-1] + "," + text[1:]
    return text.encode("utf-8", "surrogatepass")


def _write_yaml(random: Random, document: Any) -> bytes:
    style = random.choice((None, True, False))
    try:
        text = yaml.dump(document, default_flow_style=style, allow_unicode=random.random() < 0.5)
    except (yaml.YAMLError, UnicodeEncodeError):
        text = json.dumps(document)
    if random.random() < 0.1:
        text += text
    return text.encode("utf-8", "surrogatepass")


def _change_bytes(random: Random, content: bytes) -> bytes:
    """Cut, remove, flip, insert or repeat some bytes."""
    at = random.randint(0, len(content))
    to = min(len(content), at + random.choice((1, 2, 10, 100)))
    kind = random.randrange(5)
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + content[to:]
    if kind == 2 and at < len(content):
        return content[:at] + bytes([content[at] ^ (1 << random.randrange(8))]) + content[at + 1 :]
    if kind == 3:
        return content[:to] + content[at:]
    return content[:at] + random.choice(INSERTED_BYTES) + content[at:]


def _replace_content(random: Random) -> bytes:
    """Return a body that is hostile as a whole."""
    depth = random.choice((63, 64, 65, 1_000, 100_000))
    return random.choice(
        (
            b"",
            b"null",
            b"{}",
            b"[" * depth + b"]" * depth,
            b"[" * depth,
            b'{"a":' * depth + b"1" + b"}" * depth,
            b"- " * depth,
            b"? " * min(depth, 1_000),
            b"9" * 10_000,
            b"-" + b"0." + b"1" * 10_000 + b"e-400",
            ALIAS_BOMB.encode(),
            '{"name": "a"}'.encode("utf-16"),
            '{"name": "a"}'.encode("utf-32"),
            random.randbytes(random.choice((1, 100, 10_000))),
        )
    )
