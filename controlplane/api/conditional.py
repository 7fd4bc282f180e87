"""Give responses of the API an ETag, and respond with 304 to a client that has the document."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.http.response import HttpResponseBase
from django.utils.cache import set_response_etag
from django.utils.http import parse_etags

_API = "/api/"
_OK = 200


def compare_etags(
    get_response: Callable[[HttpRequest], HttpResponseBase],
) -> Callable[[HttpRequest], HttpResponseBase]:
    """Return the middleware for reads of the API; pages of the admin have ETags of their own.

    Of the conditions, only `If-None-Match` counts: reads need no other.
    """

    def respond(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        if (
            request.method != "GET"
            or response.status_code != _OK
            or not request.path.startswith(_API)
            or not isinstance(response, HttpResponse)  # a stream
        ):
            return response
        if "ETag" not in response.headers:
            set_response_etag(response)  # an empty response, such as no output, gets none
        known = parse_etags(request.headers.get("If-None-Match", ""))
        if response.headers.get("ETag") not in known:
            return response
        unchanged = HttpResponseNotModified()
        for name in ("ETag", "Vary", "Cache-Control", "X-Request-Id"):
            if name in response.headers:
                unchanged.headers[name] = response.headers[name]
        return unchanged

    return respond
