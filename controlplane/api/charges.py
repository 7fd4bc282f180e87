"""Charge requests by their cost to their token, or to their address without a token.

A unit is about a millisecond of the web process on the reference machine of the benchmarks. A
request is refused if its caller has no unit left. What it costs beyond that is known later and is
charged then, possibly as a debt, so that no request is refused half-way.

Requests that cells sign are not charged: many cells may have one address. Whether a request is
signed is known after its check, so one without a valid signature is charged when it fails.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from django.conf import settings
from rest_framework.exceptions import Throttled
from rest_framework.request import Request

from controlplane.limits.addresses import find_network
from controlplane.limits.buckets import Buckets, Limit
from controlplane.queries.tenancy.accounts import Credential

REQUEST_UNITS = 1.0
ROWS_PER_UNIT = 50
JSON_BYTES_PER_UNIT = 16_384
# A YAML document of 2 MB takes 1.5 s to parse.
YAML_BYTES_PER_UNIT = 1_400
HASHED_BYTES_PER_UNIT = 262_144
JOB_UNITS = 1.0
UNITS_PER_SECOND = 1_000.0
TASKS_PER_UNIT = 100

_buckets = Buckets()


class _Settlement:
    """In place of a credential: the request takes no more units."""


def admit(request: Request) -> None:
    """Charge for a request that begins. Raise Throttled if its caller has no unit left."""
    admit_key(_key_of(request))


def admit_address(request: Request) -> None:
    """Charge the address of a request without a valid token, as `admit` does. Raise Throttled."""
    admit_key(_key_of_address(request))


def settle(request: Request) -> None:
    """Take no more units for a request that cells sign, or that has been charged."""
    request.auth = _Settlement()


def admit_unsigned(request: Request, hashed_bytes: int = 0) -> None:
    """Charge the address of a request that is not signed as it must be. Raise Throttled.

    `hashed_bytes`: the length of the body, if its SHA-256 was computed for the check.
    """
    if not isinstance(request.auth, _Settlement):
        admit_address(request)
        charge(request, hashed_bytes / HASHED_BYTES_PER_UNIT)
        settle(request)


def admit_credential(credential: Credential, units: float = REQUEST_UNITS) -> None:
    """Charge a token for what begins. Raise Throttled if it does not have the units."""
    admit_key(_key_of_token(credential), units)


def admit_key(key: str, units: float = REQUEST_UNITS) -> None:
    """Charge `key` for what begins. Raise Throttled if it does not have the units."""
    seconds = _buckets.take(key, units, _limit())
    if seconds:
        raise Throttled(wait=seconds)


def charge(request: Request, units: float) -> None:
    """Charge for what the request costs in addition, possibly as a debt."""
    _buckets.charge(_key_of(request), units, _limit())


def charge_rows(request: Request, rows: int) -> None:
    """Charge for a page of at most `rows` rows."""
    charge(request, rows / ROWS_PER_UNIT)


def charge_document(request: Request, size: int, media_type: str) -> None:
    """Charge for the parsing of a document of `size` bytes."""
    per_unit = JSON_BYTES_PER_UNIT if media_type == "application/json" else YAML_BYTES_PER_UNIT
    charge(request, size / per_unit)


def charge_jobs(request: Request, *, jobs: int, tasks: int) -> None:
    """Charge for jobs that are created or planned, with their tasks."""
    charge(request, JOB_UNITS * jobs + tasks / TASKS_PER_UNIT)


@contextmanager
def charge_time(request: Request) -> Iterator[None]:
    """Charge for the time that the block takes, if nothing known before it is a measure of it."""
    began = monotonic()
    try:
        yield
    finally:
        charge(request, (monotonic() - began) * UNITS_PER_SECOND)


def _limit() -> Limit:
    typed = settings.CELLRUN
    return Limit(typed.request_units_per_second, typed.request_burst_units)


def _key_of(request: Request) -> str:
    credential = request.auth
    if isinstance(credential, Credential):
        return _key_of_token(credential)
    return _key_of_address(request)


def _key_of_address(request: Request) -> str:
    return f"address {find_network(request)}"


def _key_of_token(credential: Credential) -> str:
    return f"token {credential.token_id}"
