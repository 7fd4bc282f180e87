"""Paginate lists that are ordered by a key, with `limit` and an opaque `next` cursor."""

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from typing import Any

from rest_framework.pagination import BasePagination
from rest_framework.response import Response

from controlplane.api.problems import BadQuery
from controlplane.api.requests import MAX_NUMBER, Parameters

DEFAULT_LIMIT = 100
MAX_LIMIT = 1_000

ListQuery = Callable[..., Sequence[Any]]
"""A query that takes a cursor (`after` or `before`) and a `limit`."""


class KeysetPagination(BasePagination):
    """Pages whose cursor is the key of the last row: new or deleted rows do not shift a page."""

    def begin(self, parameters: Parameters) -> "KeysetPagination":
        """Read the requested part of the list and return self. Raise BadQuery."""
        self._request = parameters.request
        self.limit = parameters.number("limit", least=1, most=MAX_LIMIT) or DEFAULT_LIMIT
        self._cursor = parameters.text("cursor")
        self.following: object | None = None
        return self

    @property
    def number(self) -> int | None:
        """Return the cursor as a number; None: from the beginning. Raise BadQuery."""
        text = self.name
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= MAX_NUMBER):
            raise BadQuery("cursor", "is not a cursor of this list: use the URL in `next`")
        return int(text)

    @property
    def name(self) -> str | None:
        """Return the cursor as a text; None: from the beginning. Raise BadQuery."""
        if self._cursor is None:
            return None
        try:
            padded = self._cursor + "=" * (-len(self._cursor) % 4)
            text = base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True).decode()
        except (binascii.Error, ValueError):
            raise BadQuery(
                "cursor", "is not a cursor of this list: use the URL in `next`"
            ) from None
        if "\x00" in text:
            raise BadQuery("cursor", "is not a cursor of this list: use the URL in `next`")
        return text

    @property
    def pair(self) -> tuple[int, int] | None:
        """Return the cursor as two numbers; None: from the beginning. Raise BadQuery."""
        text = self.name
        if text is None:
            return None
        found = re.fullmatch("([0-9]{1,18}):([0-9]{1,18})", text, re.ASCII)
        if found is None:
            raise BadQuery("cursor", "is not a cursor of this list: use the URL in `next`")
        return int(found[1]), int(found[2])

    def take(self, find: ListQuery, key: str, by: str) -> Sequence[Any]:
        """Return the rows of the page; see ApiView.answer_page."""
        cursor = self.name if key == "name" else self.number
        found = find(**{by: cursor, "limit": self.limit + 1})
        results = found[: self.limit]
        last = results[-1] if len(found) > self.limit else None
        self.following = last[key] if isinstance(last, dict) else getattr(last, key, None)
        return results

    def get_paginated_response(self, data: Any) -> Response:
        """Return a page; `next` is null if it is the last."""
        following = None
        if self.following is not None:
            text = base64.urlsafe_b64encode(str(self.following).encode()).decode().rstrip("=")
            query = self._request.query_params.copy()
            query["cursor"] = text
            following = self._request.build_absolute_uri(f"?{query.urlencode()}")
        return Response({"results": data, "next": following})

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Describe a page of the list `schema`."""
        following = {"type": ["string", "null"], "format": "uri"}
        return {
            "type": "object",
            "required": ["results", "next"],
            "properties": {"results": schema, "next": following},
        }
