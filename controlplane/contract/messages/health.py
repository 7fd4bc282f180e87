"""The health check of an attempt in orders."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.contract import fields


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """Either `command`, run in the container, or a GET of `path` at the published port `port`.

    It passes with exit status 0, or with an HTTP status from 200 to 399, within `timeout_seconds`.
    The attempt is not RUNNING until it first passes, for at most `start_period_seconds` after the
    program starts; after that, `retries` consecutive failures end the attempt.
    """

    command: tuple[str, ...] = ()
    port: str | None = None
    path: str = "/"
    interval_seconds: float = 5.0
    timeout_seconds: float = 5.0
    retries: int = 3
    start_period_seconds: float = 60.0

    def body(self) -> dict[str, Any]:
        """Return the JSON form."""
        return fields.without_none(
            {
                "command": list(self.command) or None,
                "port": self.port,
                "path": self.path,
                "interval_seconds": self.interval_seconds,
                "timeout_seconds": self.timeout_seconds,
                "retries": self.retries,
                "start_period_seconds": self.start_period_seconds,
            }
        )


def read_health_check(body: Mapping[str, Any] | None) -> HealthCheck | None:
    """Return a health check, if there is one. Raise MalformedMessage."""
    if body is None:
        return None
    return HealthCheck(
        command=fields.listing(body, "command", fields.as_text),
        port=fields.text(body, "port", None),
        path=fields.text(body, "path", "/"),
        interval_seconds=fields.number(body, "interval_seconds"),
        timeout_seconds=fields.number(body, "timeout_seconds"),
        retries=fields.whole(body, "retries"),
        start_period_seconds=fields.number(body, "start_period_seconds"),
    )
