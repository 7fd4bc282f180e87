"""Return the history of a job, a task or an attempt in pages."""

from collections.abc import Callable

from rest_framework.response import Response

from controlplane.api.base import ApiView
from controlplane.api.openapi import parameter
from controlplane.queries.tenancy.foreign_jobs import hide_foreign_jobs
from controlplane.queries.views.history import HistoryPage, change_document

MERGED = [
    parameter("merged", "false: one entry per change. true (default): merge equal changes.", bool),
]


def answer_history(view: ApiView, find: Callable[..., HistoryPage]) -> Response:
    """Return the requested page of a history. `find` takes `before`, `limit` and `merged`."""
    page = view.begin_page()
    before, merged = page.number, view.query.flag("merged", default=True)
    found = find(before=before, limit=page.limit, merged=merged)
    page.following = found.following
    changes = [change_document(entry) for entry in found.entries]
    own = {change["job"] for change in changes}
    return page.get_paginated_response(hide_foreign_jobs(changes, view.access.readable, own=own))
