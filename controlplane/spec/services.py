"""Published ports and health checks of interactive jobs and services, with their rules."""

from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import Field

from controlplane.spec.faults import Finding
from controlplane.spec.fields import MAX_SECONDS, Model

MAX_PORTS = 16
MAX_CHECK_SECONDS = 3_600
MAX_START_SECONDS = 86_400
MAX_CHECK_RETRIES = 1_000

PortName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,14}$")]
Ports = Annotated[list[PortName], Field(max_length=MAX_PORTS)]


class HttpCheck(Model):
    """A GET request that must return a status from 200 to 399."""

    port: PortName = Field(description="One of the group's ports.")
    path: str = Field(default="/", pattern=r"^/[!-~]{0,1023}$")


class HealthCheck(Model):
    """Health check: a command in the container, or a GET request to one of its ports."""

    command: list[str] | None = Field(
        default=None, min_length=1, max_length=1_000, description="Exit status 0 passes."
    )
    http: HttpCheck | None = None
    interval_seconds: float = Field(default=5.0, ge=0.1, le=MAX_CHECK_SECONDS)
    timeout_seconds: float = Field(
        default=5.0, ge=0.1, le=MAX_CHECK_SECONDS, description="Of one check."
    )
    retries: int = Field(
        default=3,
        ge=1,
        le=MAX_CHECK_RETRIES,
        description="Consecutive failures that end the attempt.",
    )
    start_period_seconds: float = Field(
        default=60.0,
        ge=0.1,
        le=MAX_START_SECONDS,
        description="From the start of the program until a check must have passed.",
    )


Limit = Annotated[float, Field(ge=1, le=MAX_SECONDS)]


def check_services(
    ports: Sequence[str], check: HealthCheck | None, network: str | None
) -> Iterator[Finding]:
    """Yield duplicate ports, and faults of the health check."""
    for position, name in enumerate(ports):
        if name in ports[:position]:
            yield ("ports", position), f"{name} is named twice"
    if ports and network == "none":
        yield ("ports",), "cannot be published with network none"
    if check is None:
        return
    if (check.command is None) == (check.http is None):
        yield ("health_check",), "must have either command or http"
    if check.http is not None and check.http.port not in ports:
        yield ("health_check", "http", "port"), f"{check.http.port} is not a port of the group"
