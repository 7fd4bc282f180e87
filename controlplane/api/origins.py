"""Bind the origin of the audit lines of a request: its user and token, its address, its id."""

from collections.abc import Callable
from functools import partial
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest
from django.utils.decorators import sync_and_async_middleware
from structlog.contextvars import get_contextvars

from controlplane.commands.audit import Origin, Via, bind_origin
from controlplane.limits.addresses import find_address
from controlplane.queries.tenancy.accounts import Credential


@sync_and_async_middleware
def bind_request(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Return Django's middleware that binds the origin of each request."""
    if iscoroutinefunction(get_response):

        async def bind_async(request: HttpRequest) -> Any:
            with bind_origin(partial(find_origin, request)):
                return await get_response(request)

        return bind_async

    def bind(request: HttpRequest) -> Any:
        with bind_origin(partial(find_origin, request)):
            return get_response(request)

    return bind


def find_origin(request: HttpRequest) -> Origin:
    """Return the origin of a request, as far as its caller is authenticated by now."""
    address = str(find_address(request) or "")
    request_id = str(get_contextvars().get("request_id", ""))
    credential = getattr(request, "auth", None)
    if isinstance(credential, Credential):
        name = credential.user.get_username()
        return Origin(name, Via.TOKEN, credential.token_name, address, request_id)
    user: Any = getattr(request, "user", None)
    if user is not None and user.is_authenticated:
        return Origin(user.get_username(), Via.SESSION, "", address, request_id)
    return Origin(address=address, request_id=request_id)
