"""Parse and render constraints, resources and labels: `zone=a,b`, `gb>=64`, `!ssd`."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from cellrun.errors import BadInput

_COMPARED = re.compile(r"(?P<key>[^=!<>\s]+)\s*(?P<sign>!=|>=|<=|=|>|<)\s*(?P<value>.*)")
_OPS = {"=": "eq", "!=": "ne", ">": "gt", ">=": "ge", "<": "lt", "<=": "le"}
_SIGNS = {op: sign for sign, op in _OPS.items()}


def read_constraint(text: str, *, required: bool = True) -> dict[str, Any]:
    """Return a constraint from the command line. Raise BadInput.

    `zone=a`, `zone=a,b` (one of them), `zone!=a`, `gb>=64`, `ssd` (exists), `!ssd` (does not).
    """
    found = _COMPARED.fullmatch(text.strip())
    if found is None:
        key = text.strip().removeprefix("!").strip()
        if not key or re.search(r"[=!<>\s]", key):
            raise BadInput(f"{text!r}: expected zone=a, zone!=a, zone=a,b, gb>=64, ssd or !ssd")
        op = "not_exists" if text.strip().startswith("!") else "exists"
        return {"key": key, "op": op, "required": required}
    op, value = _OPS[found["sign"]], found["value"].strip()
    values = [part.strip() for part in value.split(",")]
    if op == "eq" and len(values) > 1:
        op = "in"
    else:
        values = [value]
    return {"key": found["key"], "op": op, "values": values, "required": required}


def read_resource(text: str) -> tuple[str, int]:
    """Return a named resource from the command line: `licence=2`. Raise BadInput."""
    name, _, amount = text.partition("=")
    if not name or not amount.isdecimal():
        raise BadInput(f"--resource {text!r}: expected NAME=NUMBER")
    return name, int(amount)


def read_concurrency(text: str) -> dict[str, Any]:
    """Return a concurrency rule from the command line: `customer-42=2`. Raise BadInput."""
    key, _, limit = text.rpartition("=")
    if not key or not limit.isdecimal():
        raise BadInput(f"--concurrency {text!r}: expected KEY=LIMIT, such as customer-42=2")
    return {"key": key, "limit": int(limit)}


def show_constraint(written: Mapping[str, Any]) -> str:
    """Return a constraint in the syntax of `read_constraint`, with a ? if it is only preferred."""
    op, key, values = str(written["op"]).lower(), written["key"], written.get("values") or []
    mark = "" if written.get("required", True) else "?"
    if op in ("exists", "not_exists"):
        return f"{'!' if op == 'not_exists' else ''}{key}{mark}"
    return f"{key}{_SIGNS.get(op, '=')}{','.join(values)}{mark}"


def describe_constraints(spec: Mapping[str, Any]) -> str:
    """Return the constraints and tags of a submitted job or group: `zone=a, tag quiet`."""
    words = [show_constraint(item) for item in spec.get("constraints") or ()]
    return ", ".join([*words, *(f"tag {tag}" for tag in spec.get("placement_tags") or ())])


def describe_concurrency(rule: Mapping[str, Any]) -> str:
    """Return the rule of a concurrency key: `concurrency key customer-42, at most 2 tasks`."""
    words = [f"concurrency key {rule['key']}"]
    if rule.get("limit") is not None:
        words.append(f"at most {rule['limit']} task{'s' * (rule['limit'] != 1)} on cells")
    if starts := rule.get("starts"):
        words.append(f"at most {starts['count']} starts in {starts['per_seconds']} s")
    return ", ".join(words)


def show_marks(labels: Mapping[str, str], tags: Iterable[str]) -> str:
    """Return the labels and tags of a cell: `gb=64, zone=a, tag quiet, tag ssd?`."""
    words = [f"{key}={value}" for key, value in sorted(labels.items())]
    return ", ".join([*words, *(f"tag {tag}" for tag in tags)])
