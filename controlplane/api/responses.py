"""Render documents as JSON without a serializer; instants are in RFC 3339."""

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.http import HttpResponse


def answer(document: Any, *, status: int = 200) -> HttpResponse:
    """An answer with `document`, made of dicts, lists and plain values, instants and uuids."""
    return HttpResponse(to_json(document), content_type="application/json", status=status)


def to_json(document: Any) -> str:
    """`document` as JSON."""
    return json.dumps(document, default=_plain, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> str:
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case UUID():
            return str(value)
    raise TypeError(f"{type(value).__name__} is not for documents")
