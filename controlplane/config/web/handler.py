"""Run each request in one thread: middleware and views are synchronous.

Django's handler for ASGI runs them in turn by the event loop and by threads, with a switch for
each middleware, which cost more than the response to a poll.
"""

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest
from django.http.response import HttpResponseBase


class SynchronousHandler(ASGIHandler):
    """Django's handler for ASGI, with one switch to the thread of the request."""

    def load_middleware(self, is_async: bool = False) -> None:
        """Load middleware and views for `get_response`."""
        super().load_middleware(is_async=False)

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        """Return the response that the thread of the request made."""
        response: HttpResponseBase = await sync_to_async(self.get_response)(request)
        return response
