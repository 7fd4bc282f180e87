"""Call the API about notifications: addresses, rules and messages (operators)."""

from collections.abc import Iterator, Mapping
from typing import Any

from cellrun.api.paths import path_to
from cellrun.api.transport import ApiTransport
from cellrun.documents import (
    NotificationAddressDocument,
    NotificationMessageDocument,
    NotificationRuleDocument,
)

_ADDRESSES, _RULES = "notification-addresses", "notification-rules"


class NotificationCalls(ApiTransport):
    """The calls about notifications. Every method may raise Unreachable or ApiError."""

    def notification_addresses(self) -> list[NotificationAddressDocument]:
        """Return the addresses by name; of their URLs only the schemes."""
        return list(self._pages(path_to(_ADDRESSES)))

    def notification_address(self, name: str) -> NotificationAddressDocument:
        """Return one address."""
        return self._call("GET", path_to(_ADDRESSES, name))

    def put_notification_address(self, name: str, url: str) -> NotificationAddressDocument:
        """Create or replace an address with a URL of Apprise."""
        return self._call("PUT", path_to(_ADDRESSES, name), body={"url": url})

    def delete_notification_address(self, name: str) -> None:
        """Delete an address with its rules and messages."""
        self._call("DELETE", path_to(_ADDRESSES, name))

    def test_notification_address(self, name: str) -> NotificationMessageDocument:
        """Send a test message to an address, once; `notification_messages` has the result."""
        return self._call("POST", path_to(_ADDRESSES, name, "test"), body={})

    def notification_messages(
        self, address: str, *, limit: int = 50
    ) -> Iterator[NotificationMessageDocument]:
        """Yield the newest messages to an address."""
        return self._pages(path_to(_ADDRESSES, address, "messages"), {}, limit)

    def notification_rules(self) -> list[NotificationRuleDocument]:
        """Return the rules by name."""
        return list(self._pages(path_to(_RULES)))

    def notification_rule(self, name: str) -> NotificationRuleDocument:
        """Return one rule."""
        return self._call("GET", path_to(_RULES, name))

    def put_notification_rule(self, name: str, rule: Mapping[str, Any]) -> NotificationRuleDocument:
        """Create or replace a rule; omitted fields get their defaults."""
        return self._call("PUT", path_to(_RULES, name), body=rule)

    def delete_notification_rule(self, name: str) -> None:
        """Delete a rule; what it has not reported is not reported."""
        self._call("DELETE", path_to(_RULES, name))
