"""Generate client/documents.py from the committed OpenAPI description."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

import yaml

DESCRIPTION = Path(__file__).parents[1] / "docs" / "openapi.yaml"

# The documents that the client reads; their parts are added.
MODELS = (
    "Job",
    "Task",
    "Attempt",
    "Artifact",
    "TaskArtifacts",
    "CacheEntry",
    "Change",
    "Cell",
    "Pool",
    "Quota",
    "StoredSecret",
    "Token",
    "GrantedToken",
    "User",
    "Whoami",
    "AuditLine",
    "Project",
    "QueueEntry",
    "Member",
    "ServiceAccount",
)
_PREFIX = "#/components/schemas/"
_TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "object": "dict[str, Any]",
}
_HEAD = '''"""Types of the API's response documents; fields of newer servers are ignored.

Generated from docs/openapi.yaml by `make docs`.
"""

from typing import Any, TypedDict
'''


def write() -> str:
    """Return the module, in which each document follows its parts."""
    schemas = yaml.safe_load(DESCRIPTION.read_text())["components"]["schemas"]
    names: list[str] = []
    for model in MODELS:
        names += [name for name in (*_parts_of(schemas, model), model) if name not in names]
    return _HEAD + "".join(_write_class(name, schemas[name]) for name in dict.fromkeys(names))


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
