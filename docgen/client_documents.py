"""Generate the package cellrun/documents from the committed OpenAPI description."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import yaml

DESCRIPTION = Path(__file__).parents[1] / "docs" / "openapi.yaml"

# The modules of `cellrun/documents` with the documents that the client reads, and their parts.
# A module imports parts of the modules above it.
MODULES: Mapping[str, tuple[str, ...]] = {
    "tenancy": (
        "StoredSecret",
        "Token",
        "GrantedToken",
        "User",
        "Whoami",
        "AuditLine",
        "Project",
        "Member",
        "ServiceAccount",
    ),
    "jobs": ("Job", "QueueEntry", "BulkCount", "BulkOperation"),
    "schedules": ("ScheduleDocument", "ScheduleFiringDocument"),
    "tasks": (
        "Task",
        "Attempt",
        "ExecDocument",
        "Artifact",
        "TaskArtifacts",
        "CacheEntry",
        "Change",
    ),
    "cells": ("Cell", "Pool", "Quota", "UsageRow", "Alert"),
    "notifications": (
        "NotificationAddressDocument",
        "NotificationMessageDocument",
        "NotificationRuleDocument",
    ),
}
_PREFIX = "#/components/schemas/"
_TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "object": "dict[str, Any]",
}
_GENERATED = "Generated from docs/openapi.yaml by `make docs`."
_PACKAGE_HEAD = f'''"""Types of the API's response documents; fields of newer servers are ignored.

{_GENERATED}
"""
'''


def write_package() -> str:
    """Return the file of the package, which exports all documents."""
    found = _names_by_module(_load_schemas())
    imports = [_import(module, names) for module, names in sorted(found.items())]
    exported = sorted(name for names in found.values() for name in names)
    listed = "".join(f'    "{name}",\n' for name in exported)
    return f"{_PACKAGE_HEAD}\n{''.join(imports)}\n__all__ = [\n{listed}]\n"


def write_module(module: str) -> str:
    """Return a module, in which each document follows its parts."""
    schemas = _load_schemas()
    found = _names_by_module(schemas)
    own = found[module]
    classes = "".join(_write_class(name, schemas[name]) for name in own)
    parts = {part for name in own for part in _references(schemas[name])} - set(own)
    typing = "Any, TypedDict" if "Any" in classes else "TypedDict"
    head = [f'"""Types of documents about {module}.\n\n{_GENERATED}\n"""\n\n']
    head.append(f"from typing import {typing}\n")
    imports = [
        _import(other, sorted(parts.intersection(names)))
        for other, names in sorted(found.items())
        if parts.intersection(names)
    ]
    return "".join([*head, *(["\n", *imports] if imports else []), classes])


def _load_schemas() -> Mapping[str, Any]:
    schemas: Mapping[str, Any] = yaml.safe_load(DESCRIPTION.read_text())["components"]["schemas"]
    return schemas


def _names_by_module(schemas: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the documents of each module; a part of several is in the first one."""
    known: set[str] = set()
    found: dict[str, list[str]] = {}
    for module, models in MODULES.items():
        names = [name for model in models for name in (*_parts_of(schemas, model), model)]
        found[module] = [name for name in dict.fromkeys(names) if name not in known]
        known.update(names)
    return found


def _import(module: str, names: Sequence[str]) -> str:
    path = f"cellrun.documents.{module}"
    line = f"from {path} import {', '.join(sorted(names))}\n"
    if len(line) <= 101:
        return line
    listed = "".join(f"    {name},\n" for name in sorted(names))
    return f"from {path} import (\n{listed})\n"


def _parts_of(schemas: Mapping[str, Any], name: str) -> Iterator[str]:
    for part in _references(schemas[name]):
        yield from _parts_of(schemas, part)
        yield part


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].removeprefix(_PREFIX)
        for inner in schema.values():
            yield from _references(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _references(inner)


def _write_class(name: str, schema: Mapping[str, Any]) -> str:
    text = " ".join(schema["description"].split())
    lines = [f'    """{text}"""'] if len(text) <= 90 else _long(text)
    fields = [f"    {field}: {_type_of(of)}" for field, of in schema["properties"].items()]
    return "\n".join(["", "", f"class {name}(TypedDict):", *lines, "", *fields, ""])


def _long(text: str) -> list[str]:
    first, *rest = wrap(text, 92)
    return [f'    """{first}', *(f"    {line}" for line in rest), '    """']


def _type_of(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].removeprefix(_PREFIX))
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return " | ".join(map(_type_of, schema[choice]))
    kind = schema["type"]
    if isinstance(kind, list):
        return " | ".join(_type_of({**schema, "type": one}) for one in kind)
    if kind == "array":
        return f"list[{_type_of(schema['items'])}]"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"dict[str, {_type_of(schema['additionalProperties'])}]"
    return _TYPES[kind]
