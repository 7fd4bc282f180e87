"""Checks of passwords and codes: limited for each address and name, logged and audited."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import structlog
from django.contrib.auth.forms import AuthenticationForm, PasswordChangeForm
from django.core.exceptions import ValidationError
from django.http import HttpRequest

from controlplane import clock
from controlplane.commands.tenancy.logins import record_login
from controlplane.limits.addresses import find_address, find_network
from controlplane.limits.buckets import Buckets, Limit

log = structlog.get_logger(__name__)

# Failed logins, after which one more is possible per minute, or per ten seconds.
BY_NAME = Limit(per_second=1 / 60, burst=10)
BY_ADDRESS = Limit(per_second=1 / 10, burst=30)

_attempts = Buckets()


class LoginForm(AuthenticationForm):
    """Django's form, which checks no password of a caller or for a name with too many failures."""

    def clean(self) -> dict[str, Any]:
        """Return the fields of a user who may log in. Raise ValidationError."""
        name = self.cleaned_data.get("username")
        if name is None or not self.cleaned_data.get("password"):
            return dict(super().clean())
        request = cast(HttpRequest, self.request)  # the login page gives it
        with limited_check(request, name):
            return dict(super().clean())


class OwnPasswordForm(PasswordChangeForm):
    """Django's form of the own password, which checks the present one as a login does."""

    request: HttpRequest

    def clean_old_password(self) -> str:
        """Return the present password. Raise ValidationError."""
        with limited_check(self.request, self.user.get_username(), "wrong present password"):
            return str(super().clean_old_password())


@contextmanager
def limited_check(request: HttpRequest, name: str, cause: str = "") -> Iterator[None]:
    """Count the block, which checks a password or code of `name`, as a login.

    It fails with ValidationError, which is logged and recorded with its `cause`. Raise
    ValidationError with the code `throttled` instead of running it after too many failures.
    """
    address, network = str(find_address(request)), find_network(request)
    if seconds := take_login(network, name):
        log.warning("login_throttled", user=name, address=address)
        raise ValidationError(
            f"Too many failed logins. Try again in {seconds:.0f} s.", code="throttled"
        )
    try:
        yield
    except ValidationError:
        reason = {"reason": cause} if cause else {}
        log.warning("login_failed", user=name, address=address, **reason)
        record_login(name=name, address=address, succeeded=False, now=clock.now(), detail=cause)
        raise
    give_back_login(network, name)


def take_login(network: str, name: str | None = None) -> float:
    """Take one login of the network and of the name, and return 0; or return the time to wait.

    The network comes first, so that a network without logins cannot use up those of a name.
    """
    seconds = _attempts.take(f"address {network}", 1, BY_ADDRESS)
    if name is not None:
        seconds = seconds or _attempts.take(_key_of(name), 1, BY_NAME)
    return max(seconds, 1.0) if seconds else 0.0


def give_back_login(network: str, name: str | None = None) -> None:
    """Give back what a successful login took."""
    _attempts.charge(f"address {network}", -1, BY_ADDRESS)
    if name is not None:
        _attempts.charge(_key_of(name), -1, BY_NAME)


def _key_of(name: str) -> str:
    return f"name {name.casefold()}"
