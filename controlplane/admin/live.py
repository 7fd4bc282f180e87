"""Refresh pages in place: an open page polls its own URL while its tab is visible.

A poll sends the ETag of the page. The response is 304 until the history that the page depends on
has a newer row; otherwise it is the part of the page that changes, without the frame.
"""

from collections.abc import Callable
from hashlib import sha256

from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.template.response import TemplateResponse
from django.utils.cache import patch_cache_control, patch_vary_headers
from django.utils.http import quote_etag

from controlplane import clock
from controlplane.queries.pages.versions import HistoryScope, load_page_version

MAX_AGE_SECONDS = 60
"""The age at which a page is rendered again although neither history nor audit log changed.

The other values are pending reasons and usage. Open pages count durations by themselves.
"""

SHORT_AGE_SECONDS = 10
"""The same for pages of cells, ticks and deliveries, whose changes are not in the history."""

POLL_SECONDS = 4

VALID_SECONDS = "X-Valid-Seconds"
"""The header of a page for the web process: the time until it must be rendered again."""

FRAGMENT_FRAME = "controlplane/live_frame.html"
"""What a page extends in the response to a poll, instead of the frame of the admin."""


def is_poll(request: HttpRequest) -> bool:
    """Return whether an open page polls, rather than a browser opens it."""
    return request.method == "GET" and request.headers.get("HX-Request") == "true"


def respond_live(
    request: HttpRequest,
    respond: Callable[[], HttpResponse],
    *,
    scope: HistoryScope,
    max_age: int = MAX_AGE_SECONDS,
) -> HttpResponse:
    """Return a page that refreshes itself, or 304 to a poll whose page did not change.

    `scope`: the history on which the page depends. `max_age`: the limit for values without history.
    """
    version = load_page_version(scope)
    period, age = divmod(clock.now().timestamp(), max_age)
    text = f"{request.get_full_path()} {request.user.pk} {version} {int(period)}"
    etag = quote_etag(sha256(text.encode()).hexdigest()[:32])
    response: HttpResponse
    if is_poll(request) and request.headers.get("If-None-Match") == etag:
        response = HttpResponseNotModified()
    else:
        response = respond()
        if isinstance(response, TemplateResponse):
            context = response.context_data = response.context_data or {}
            context |= {
                "etag": etag,
                "poll_seconds": POLL_SECONDS,
                "open_alerts": version.open_alerts,
            }
            if is_poll(request):
                context["page_frame"] = FRAGMENT_FRAME
    if response.status_code in (200, 304):
        response.headers["ETag"] = etag
        response.headers[VALID_SECONDS] = f"{max_age - age:.3f}"
    patch_cache_control(response, no_store=True)
    patch_vary_headers(response, ["HX-Request"])
    return response
