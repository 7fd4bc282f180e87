"""Paginate long lists with `limit` and an opaque `next` cursor."""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Any

from django.http import HttpResponse
from rest_framework.request import Request

from controlplane.api.problems import BadQuery
from controlplane.api.requests import MAX_NUMBER, Parameters
from controlplane.api.responses import answer

DEFAULT_LIMIT = 100
MAX_LIMIT = 1_000
PAGING = ("limit", "cursor")


class PageRequest:
    """Which part of a list is asked for."""

    def __init__(self, request: Request, parameters: Parameters) -> None:
        self._request = request
        self.limit = parameters.number("limit", least=1, most=MAX_LIMIT) or DEFAULT_LIMIT
        self._cursor = parameters.text("cursor")

    @property
    def number(self) -> int | None:
        """The cursor as a number; None: from the beginning. Raises BadQuery."""
        text = self.name
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= MAX_NUMBER):
            raise BadQuery("cursor", "is not one of this list")
        return int(text)

    @property
    def name(self) -> str | None:
        """The cursor as a text; None: from the beginning. Raises BadQuery."""
        if self._cursor is None:
            return None
        try:
            padded = self._cursor + "=" * (-len(self._cursor) % 4)
            text = base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True).decode()
        except (binascii.Error, ValueError):
            raise BadQuery("cursor", "is not one of this list") from None
        if "\x00" in text:
            raise BadQuery("cursor", "is not one of this list")
        return text

    def answer(
        self, found: Sequence[dict[str, Any]], key: Callable[[dict[str, Any]], object]
    ) -> HttpResponse:
        """The page; `found` has one item more than `limit` if there is another page."""
        results = found[: self.limit]
        return self.answer_part(results, key(results[-1]) if len(found) > self.limit else None)

    def answer_part(self, results: Sequence[dict[str, Any]], cursor: object | None) -> HttpResponse:
        """Return a page of exactly these results; `cursor`: None if there is no other page."""
        following = None
        if cursor is not None:
            text = base64.urlsafe_b64encode(str(cursor).encode()).decode().rstrip("=")
            query = self._request.query_params.copy()
            query["cursor"] = text
            following = self._request.build_absolute_uri(f"?{query.urlencode()}")
        return answer({"results": results, "next": following})
