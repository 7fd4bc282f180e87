"""Types of documents about notifications.

Generated from docs/openapi.yaml by `make docs`.
"""

from typing import TypedDict


class NotificationAddressDocument(TypedDict):
    """An address of notifications, without its URL."""

    name: str
    url: str
    service: str
    created_at: str
    updated_at: str


class NotificationMessageDocument(TypedDict):
    """A message to an address."""

    id: int
    rule: str | None
    is_test: bool
    title: str
    body: str
    state: str
    tries: int
    due_at: str
    created_at: str
    ended_at: str | None
    last_error: str


class NotificationQuietHours(TypedDict):
    """A daily period without messages; the digest of the period comes at its end."""

    time_zone: str
    begin: str
    end: str
    weekdays: list[int]


class NotificationRuleDocument(TypedDict):
    """A rule of notifications, as in its request."""

    name: str
    address: str
    enabled: bool
    about: str
    kinds: list[str]
    only_critical: bool
    projects: list[str]
    states: list[str]
    name_pattern: str
    label: str
    group_wait_seconds: int
    group_interval_seconds: int
    quiet_hours: NotificationQuietHours | None
    critical_passes: bool
