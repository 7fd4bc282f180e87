"""Endpoints of notifications: operators configure addresses and rules, and test an address."""

from functools import partial
from typing import Any

from rest_framework.decorators import action
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane import clock
from controlplane.api.base import ApiView, MayOperate
from controlplane.api.openapi import Operation
from controlplane.api.operators.notifications import schemas
from controlplane.api.requests import check_named, read_part
from controlplane.api.schemas import EmptyRequest
from controlplane.commands.notifications import configure
from controlplane.commands.notifications.requests import (
    NotificationAddressRequest,
    NotificationRuleRequest,
)
from controlplane.queries import notifications
from controlplane.spec import Fault, InvalidSpec, UnreadableDocument


class NotificationAddresses(ApiView):
    """Addresses of notifications; their URLs are never returned."""

    permission_classes = (IsAuthenticated, MayOperate)
    document = schemas.NotificationAddressDocument
    lookup_field = "name"
    lookup_value_converter = "name"

    @Operation(id="list_notification_addresses", page=True, problems=(403,))
    def list(self, request: Request) -> Response:
        """List addresses by name, without their URLs (operators)."""
        return self.answer_page(_find_addresses, "name", "after")

    @Operation(problems=(403,))
    def retrieve(self, request: Request, name: str) -> Response:
        """Show an address with the scheme of its URL (operators)."""
        return self.answer(_describe(notifications.get_address(name)))

    @Operation(body=NotificationAddressRequest, codes=(200, 201), problems=(409,))
    def update(self, request: Request, name: str) -> Response:
        """Create or replace an address (operators). Test it with `test`."""
        is_new = configure.put_address(name=name, url=_read_url(request), now=clock.now())
        status = 201 if is_new else 200
        return self.answer(_describe(notifications.get_address(name)), status=status)

    @Operation()
    def destroy(self, request: Request, name: str) -> Response:
        """Delete an address with its rules and messages (operators)."""
        configure.delete_address(name=name, now=clock.now())
        return Response(status=204)

    @Operation(
        id="test_notification_address",
        body=EmptyRequest,
        answer=schemas.NotificationMessageDocument,
        codes=(202,),
    )
    @action(detail=True, methods=["post"], url_path="test")
    def test(self, request: Request, name: str) -> Response:
        """Send a test message to an address, once; `messages` has the result (operators)."""
        read_part(request, EmptyRequest)
        return self.answer(
            _describe_message(configure.send_test(name=name, now=clock.now())), status=202
        )

    @Operation(
        id="list_notification_messages",
        answer=schemas.NotificationMessageDocument,
        page=True,
        problems=(403,),
    )
    @action(detail=True, methods=["get"], url_path="messages")
    def messages(self, request: Request, name: str) -> Response:
        """List the messages to an address, newest first (operators)."""
        return self.answer_page(partial(_find_messages, name), "id")


class NotificationRules(ApiView):
    """Rules of notifications."""

    permission_classes = (IsAuthenticated, MayOperate)
    document = schemas.NotificationRuleDocument
    lookup_field = "name"
    lookup_value_converter = "name"

    @Operation(page=True, problems=(403,))
    def list(self, request: Request) -> Response:
        """List rules by name (operators)."""
        return self.answer_page(_find_rules, "name", "after")

    @Operation(problems=(403,))
    def retrieve(self, request: Request, name: str) -> Response:
        """Show a rule (operators)."""
        return self.answer(notifications.describe_rule(notifications.get_rule(name)))

    @Operation(body=NotificationRuleRequest, codes=(200, 201), problems=(409,))
    def update(self, request: Request, name: str) -> Response:
        """Create or replace a rule (operators); a new one reports events from now on."""
        wanted = read_part(request, NotificationRuleRequest)
        check_named("name", wanted.name, name)
        is_new = configure.put_rule(name=name, wanted=wanted.fields(), now=clock.now())
        found = notifications.describe_rule(notifications.get_rule(name))
        return self.answer(found, status=201 if is_new else 200)

    @Operation()
    def destroy(self, request: Request, name: str) -> Response:
        """Delete a rule; what it has not reported is not reported (operators)."""
        configure.delete_rule(name=name, now=clock.now())
        return Response(status=204)


def _find_addresses(**page: Any) -> list[dict[str, Any]]:
    return [_describe(address) for address in notifications.list_addresses(**page)]


def _find_messages(name: str, **page: Any) -> list[dict[str, Any]]:
    return [_describe_message(it) for it in notifications.list_messages(name, **page)]


def _find_rules(**page: Any) -> list[dict[str, Any]]:
    return [notifications.describe_rule(rule) for rule in notifications.list_rules(**page)]


def _describe(address: Any) -> dict[str, Any]:
    return {
        "name": address.name,
        "url": address.masked,
        "service": address.service,
        "created_at": address.created_at,
        "updated_at": address.updated_at,
    }


def _describe_message(message: Any) -> dict[str, Any]:
    copied = (
        "id",
        "is_test",
        "title",
        "body",
        "state",
        "tries",
        "due_at",
        "created_at",
        "ended_at",
        "last_error",
    )
    rule = None if message.rule is None else message.rule.name
    return {"rule": rule, **{name: getattr(message, name) for name in copied}}


def _read_url(request: Request) -> str:
    """Return the URL in the body. Errors do not repeat parts of the body."""
    try:
        return read_part(request, NotificationAddressRequest).url
    except UnreadableDocument:
        text = "the body cannot be parsed; details are omitted because they could reveal the URL"
        raise UnreadableDocument(text) from None
    except InvalidSpec as error:
        known = NotificationAddressRequest.model_fields
        faults = [
            fault if not fault.field or fault.field in known else Fault("", "unknown field")
            for fault in error.faults
        ]
        raise InvalidSpec(faults) from None
