"""Answer the history of a job, a task or an attempt in pages."""

from collections.abc import Callable

from rest_framework.response import Response

from controlplane.api.base import ApiView
from controlplane.api.openapi import parameter
from controlplane.queries.views.history import HistoryPage, change_document

MERGED = [
    parameter("merged", "false: each row for itself. Else what repeats is one entry.", bool),
]


def answer_history(view: ApiView, find: Callable[..., HistoryPage]) -> Response:
    """Return the part of a history that the query asks for. `find` takes what selects it."""
    page = view.begin_page()
    before, merged = page.number, view.query.flag("merged", default=True)
    found = find(before=before, limit=page.limit, merged=merged)
    page.following = found.following
    return page.get_paginated_response([change_document(entry) for entry in found.entries])
