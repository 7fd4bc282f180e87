"""What operators configure of notifications, with its limits: an address, and a rule."""

from datetime import time
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import Field, field_validator, model_validator

from controlplane.commands.notifications.configure import RuleFields
from controlplane.contract.states import TaskState
from controlplane.domain.alerts import ALERTS
from controlplane.spec.fields import Model, Name

_MAX_WAIT_SECONDS = 3_600
_MAX_INTERVAL_SECONDS = 86_400
_LocalTime = Annotated[str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]
_Weekday = Annotated[int, Field(ge=0, le=6)]
_Project = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}/[a-z0-9][a-z0-9._-]{0,62}$")]
FinalState = Literal["SUCCEEDED", "FAILED", "KILLED", "WORKER_FAILED", "UNSCHEDULABLE"]


class NotificationAddressRequest(Model):
    """An address of notifications."""

    url: Annotated[str, Field(min_length=1, max_length=4_096)] = Field(
        repr=False, description="A URL of Apprise, such as mailtos://user:password@example.org."
    )


class NotificationQuietHours(Model):
    """A daily period without messages; the digest of the period comes at its end."""

    time_zone: Annotated[str, Field(min_length=1, max_length=63)] = Field(
        description="Such as Europe/Berlin."
    )
    begin: _LocalTime = Field(description="Local time, such as 22:00.")
    end: _LocalTime = Field(description="Not after the begin: on the next day.")
    weekdays: Annotated[list[_Weekday], Field(max_length=7)] = Field(
        default=[], description="Days on which it begins, Monday is 0; empty: all."
    )

    @field_validator("time_zone")
    @classmethod
    def _is_zone(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (ValueError, OSError, KeyError):
            raise ValueError("is not a time zone, such as Europe/Berlin") from None
        return name

    @model_validator(mode="after")
    def _is_period(self) -> "NotificationQuietHours":
        if self.begin == self.end:
            raise ValueError("begin and end must differ")
        return self


class NotificationRuleRequest(Model):
    """What is reported to an address, and when. Omitted fields get their defaults."""

    name: Name | None = Field(default=None, description="As in the URL; optional.")
    address: Name
    enabled: bool = True
    about: Literal["alerts", "jobs"]
    kinds: Annotated[list[Annotated[str, Field(max_length=63)]], Field(max_length=64)] = Field(
        default=[], description="Kinds of alerts; empty: all."
    )
    only_critical: bool = Field(default=False, description="Only critical alerts.")
    projects: Annotated[list[_Project], Field(max_length=100)] = Field(
        default=[], description="Projects of ended jobs, as domain/project; empty: all."
    )
    states: list[FinalState] = Field(
        default=[], max_length=8, description="Final states of jobs; empty: all."
    )
    name_pattern: Annotated[str, Field(max_length=100)] = Field(
        default="", description="Of names of jobs, such as nightly-*."
    )
    label: Annotated[str, Field(max_length=63)] = Field(
        default="", description="Value of the label notify of jobs; empty: any job."
    )
    group_wait_seconds: Annotated[int, Field(ge=0, le=_MAX_WAIT_SECONDS)] = Field(
        default=30, description="From the first event to its message."
    )
    group_interval_seconds: Annotated[int, Field(ge=10, le=_MAX_INTERVAL_SECONDS)] = Field(
        default=300, description="Between two messages, at least."
    )
    quiet_hours: NotificationQuietHours | None = None
    critical_passes: bool = Field(
        default=True, description="Whether critical alerts are sent in quiet hours."
    )

    @field_validator("kinds")
    @classmethod
    def _are_kinds(cls, kinds: list[str]) -> list[str]:
        for kind in kinds:
            if kind not in ALERTS:
                raise ValueError(f"{kind[:63]} is not a kind of alerts")
        return kinds

    def fields(self) -> RuleFields:
        """Return the columns of the rule."""
        quiet = self.quiet_hours
        columns: dict[str, Any] = self.model_dump(
            exclude={"name", "address", "enabled", "states", "quiet_hours"}
        )
        columns |= {
            "is_enabled": self.enabled,
            "states": sorted({int(TaskState[name]) for name in self.states}),
            "quiet_zone": quiet.time_zone if quiet else "",
            "quiet_begin": time.fromisoformat(quiet.begin) if quiet else None,
            "quiet_end": time.fromisoformat(quiet.end) if quiet else None,
            "quiet_weekdays": sorted(set(quiet.weekdays)) if quiet else [],
        }
        return RuleFields(self.address, columns)
