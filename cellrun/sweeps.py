"""Expand a job to a sweep: one group for each combination of parameters, in its environment."""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from cellrun.errors import BadInput
from controlplane.spec import TaskGroupSpec

Parameters = Mapping[str, str]

MAX_COMBINATIONS = 1_000
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,254}")
_LONGEST_NAME = 63
_GROUP_FIELDS = frozenset(TaskGroupSpec.model_fields) - {"name"}


def read_matrix(options: Iterable[str]) -> list[Parameters]:
    """Return all combinations of `NAME=VALUE,VALUE`, the last name changing fastest."""
    values: dict[str, list[str]] = {}
    for option in options:
        name, found, text = option.partition("=")
        if not found or not text:
            raise BadInput(f"--matrix {option!r}: expected NAME=VALUE,VALUE")
        _check_name(name, "--matrix")
        if name in values:
            raise BadInput(f"--matrix: {name} occurs twice; list all its values in one option")
        values[name] = text.split(",")
    return [dict(zip(values, row, strict=True)) for row in product(*values.values())]


def read_array_file(path: str) -> list[Parameters]:
    """Return the rows of a CSV file, whose first line has the names. Raise BadInput."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        rows = [row for row in csv.reader(text.splitlines(), strict=True) if row]
    except OSError as fault:
        raise BadInput(f"{path}: {(fault.strerror or 'cannot be read').lower()}") from None
    except (UnicodeDecodeError, csv.Error) as fault:
        raise BadInput(f"{path}: is not a CSV file in UTF-8: {fault}") from None
    if len(rows) < 2:
        raise BadInput(f"{path}: needs a line with names and at least one with values")
    names, *values = rows
    for name in names:
        _check_name(name, path)
    if len(set(names)) < len(names):
        raise BadInput(f"{path}: a name occurs twice in the first line")
    for number, row in enumerate(values, 1):
        if len(row) != len(names):
            raise BadInput(f"{path}: row {number} has {len(row)} values for {len(names)} names")
    return [dict(zip(names, row, strict=True)) for row in values]


def expand_sweep(spec: Mapping[str, Any], combinations: Sequence[Parameters]) -> dict[str, Any]:
    """Return the job with a group for each combination. Raise BadInput.

    A task that fails does not end the others, unless the job has a minimum or `max_task_failures`;
    the job is SUCCEEDED if all of them succeed.
    """
    if len(combinations) > MAX_COMBINATIONS:
        raise BadInput(f"{len(combinations)} combinations: a job has at most {MAX_COMBINATIONS}")
    job, base = _split_group(spec)
    names = _name_groups(str(base.pop("name", "main")), combinations)
    groups = [
        {**base, "name": name, "env": {**(base.get("env") or {}), **combination}}
        for name, combination in zip(names, combinations, strict=True)
    ]
    replicas = base.get("replicas", 1)
    has_limit = any(
        where.get(field) is not None
        for where in (job, base)
        for field in ("max_task_failures", "min_available")
    )
    if not has_limit and isinstance(replicas, int):
        total = replicas * len(groups)
        job |= {"max_task_failures": total, "min_available": total}
    return {**job, "groups": groups}


def _split_group(spec: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of the job, and those of its only group."""
    if "groups" not in spec:
        base = {field: value for field, value in spec.items() if field in _GROUP_FIELDS}
        return {field: value for field, value in spec.items() if field not in base}, base
    groups = spec["groups"]
    if not isinstance(groups, list) or len(groups) != 1 or not isinstance(groups[0], dict):
        raise BadInput("a sweep needs a job with one group")
    return {field: value for field, value in spec.items() if field != "groups"}, dict(groups[0])


def _name_groups(base: str, combinations: Sequence[Parameters]) -> list[str]:
    """Return names with the values, such as `lr-0.1-bs-32`; numbered ones if they do not fit."""
    names = ["-".join(f"{k}-{v}" for k, v in each.items()).lower() for each in combinations]
    fit = all(re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name) for name in names)
    if fit and len(set(names)) == len(names) and max(map(len, names)) <= _LONGEST_NAME:
        return names
    return [f"{base}-{number}" for number in range(len(combinations))]


def _check_name(name: str, where: str) -> None:
    if not _ENV_NAME.fullmatch(name):
        raise BadInput(f"{where}: {name!r} is not a name of an environment variable")
