"""Load what pages show of notifications: the latest messages, and the events that wait."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controlplane.domain.notifications.windows import Pending
from controlplane.models import NotificationMessage
from controlplane.queries.sql import named_rows


@dataclass(frozen=True, slots=True)
class RuleState:
    """The unsent events of a rule, also those that are only counted, and its latest message."""

    unsent: int
    pending: Pending
    message: NotificationMessage | None


@dataclass(frozen=True, slots=True)
class AddressState:
    """The numbers of rules and of open messages of an address, and its latest message."""

    rules: int
    open_messages: int
    message: NotificationMessage | None


def load_rule_states(rule_ids: Sequence[int]) -> dict[int, RuleState]:
    """Return the states of rules by id."""
    found = named_rows(
        """
        SELECT r.id, e.unsent + r.uncounted AS unsent, e.first_at, e.first_critical_at, m.message_id
        FROM controlplane_notificationrule r
        CROSS JOIN LATERAL (
            SELECT count(*) AS unsent, min(at) AS first_at,
                   min(at) FILTER (WHERE is_critical) AS first_critical_at
            FROM controlplane_notificationevent WHERE rule_id = r.id AND sent_at IS NULL
        ) e
        LEFT JOIN LATERAL (
            SELECT id AS message_id FROM controlplane_notificationmessage
            WHERE rule_id = r.id ORDER BY id DESC LIMIT 1
        ) m ON true
        WHERE r.id = ANY(%s)
        """,
        [list(rule_ids)],
    )
    messages = _messages(row.message_id for row in found)
    return {
        row.id: RuleState(
            row.unsent,
            Pending(row.first_at, row.first_critical_at),
            messages.get(row.message_id),
        )
        for row in found
    }


def load_address_states(address_ids: Sequence[int]) -> dict[int, AddressState]:
    """Return the states of addresses by id."""
    found = named_rows(
        """
        SELECT a.id, m.message_id,
               (SELECT count(*) FROM controlplane_notificationrule
                WHERE address_id = a.id) AS rules,
               (SELECT count(*) FROM controlplane_notificationmessage
                WHERE address_id = a.id AND ended_at IS NULL) AS open_messages
        FROM controlplane_notificationaddress a
        LEFT JOIN LATERAL (
            SELECT id AS message_id FROM controlplane_notificationmessage
            WHERE address_id = a.id ORDER BY id DESC LIMIT 1
        ) m ON true
        WHERE a.id = ANY(%s)
        """,
        [list(address_ids)],
    )
    messages = _messages(row.message_id for row in found)
    return {
        row.id: AddressState(row.rules, row.open_messages, messages.get(row.message_id))
        for row in found
    }


def _messages(ids: Iterable[int | None]) -> dict[int | None, NotificationMessage]:
    found = NotificationMessage.objects.defer("body").in_bulk([it for it in ids if it is not None])
    return dict(found)
