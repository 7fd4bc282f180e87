"""Send a Content-Security-Policy with each response: pages run no inline scripts.

Pages of the admin evaluate expressions in attributes (Alpine), and set the colours of badges in
`style` attributes. So `unsafe-eval` is needed for scripts, and `unsafe-inline` for styles.
"""

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

HEADER = "Content-Security-Policy"
PAGES = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "object-src 'none'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
DOCUMENTS = "default-src 'none'; frame-ancestors 'none'; sandbox"
"""For responses of the API, which are no pages."""

_API = "/api/v1/"


@sync_and_async_middleware
def restrict_content(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Return Django's middleware that adds the header to responses without one."""
    if iscoroutinefunction(get_response):

        async def restrict_async(request: HttpRequest) -> HttpResponseBase:
            return _restrict(request, await get_response(request))

        return restrict_async

    def restrict(request: HttpRequest) -> HttpResponseBase:
        return _restrict(request, get_response(request))

    return restrict


def _restrict(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    policy = DOCUMENTS if request.path.startswith(_API) else PAGES
    response.headers.setdefault(HEADER, policy)
    return response
