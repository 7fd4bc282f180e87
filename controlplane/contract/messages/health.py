"""The health check of an attempt in orders."""

from dataclasses import dataclass

from controlplane.contract.codec import Document


@dataclass(frozen=True, slots=True)
class HealthCheck(Document):
    """Either `command`, run in the container, or a GET of `path` at the published port `port`.

    It passes with exit status 0, or with an HTTP status from 200 to 399, within `timeout_seconds`.
    The attempt becomes RUNNING when the check first passes, which must happen within
    `start_period_seconds` of the program's start. Later, `retries` consecutive failures end the
    attempt.
    """

    command: tuple[str, ...] = ()
    port: str | None = None
    path: str = "/"
    interval_seconds: float = 5.0
    timeout_seconds: float = 5.0
    retries: int = 3
    start_period_seconds: float = 60.0
