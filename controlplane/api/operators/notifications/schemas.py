"""The responses about notifications."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from controlplane.commands.notifications.requests import NotificationQuietHours
from controlplane.spec.fields import Model


class NotificationAddressDocument(Model):
    """An address of notifications, without its URL."""

    name: str
    url: str = Field(description="Its scheme; everything else is masked.")
    service: str = Field(description="The service that the URL names.")
    created_at: datetime
    updated_at: datetime


class NotificationMessageDocument(Model):
    """A message to an address."""

    id: int
    rule: str | None = Field(description="Null: a test, or its rule is deleted.")
    is_test: bool
    title: str
    body: str
    state: Literal["waiting", "claimed", "delivered", "abandoned"]
    tries: int
    due_at: datetime
    created_at: datetime
    ended_at: datetime | None
    last_error: str


class NotificationRuleDocument(Model):
    """A rule of notifications, as in its request."""

    name: str
    address: str
    enabled: bool
    about: Literal["alerts", "jobs"]
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
