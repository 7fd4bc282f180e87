"""Sessions: started after all factors, and, between two factors, pending logins."""

from dataclasses import dataclass
from typing import Any, cast

import structlog
from django.conf import settings
from django.contrib.auth import login as start_session
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme

from controlplane import clock
from controlplane.commands.tenancy.logins import delete_expired_sessions, record_login
from controlplane.limits.addresses import find_address
from controlplane.queries.tenancy.permissions import may_log_in, may_use_admin

log = structlog.get_logger(__name__)

BACKEND = "controlplane.queries.tenancy.permissions.AccountBackend"

PENDING_SECONDS = 600
"""The time that a user has between password and code, or for the setup of a second factor."""

SECOND_FACTOR = "second_factor"
"""The second factor of a session: `PROVIDER`, or one of the user; none after a password alone."""

PROVIDER = "provider"
"""The second factor of sessions that began with a provider, which may require one itself."""

_PENDING = "pending_login"


@dataclass(frozen=True, slots=True)
class PendingLogin:
    """A user whose password was verified, and the page that was requested."""

    user: User
    following: str


def open_session(
    request: HttpRequest, user: User, *, following: str, detail: str = "", factor: str | None
) -> HttpResponse:
    """Start the session of a user, log and record it, and return a redirect to the next page.

    `factor`: the second factor that it began with.
    """
    start_session(request, user, backend=BACKEND)
    request.session.pop(_PENDING, None)
    request.session.set_expiry(None)  # a pending login may have set its own
    request.session[SECOND_FACTOR] = factor  # also instead of that of an earlier session
    now, name, address = clock.now(), user.get_username(), str(find_address(request))
    log.info("logged_in", user=name, address=address, detail=detail)
    record_login(name=name, address=address, succeeded=True, now=now, detail=detail)
    delete_expired_sessions(now=now)
    return HttpResponseRedirect(own_path(request, user, following))


def begin_second_step(request: HttpRequest, user: User, *, following: str) -> HttpResponse | None:
    """Return a redirect to the page of the second factor; None if the user needs none."""
    if factor_of(user) is not None:
        page = "totp_code"
    elif settings.CELLRUN.require_totp:
        page = "totp_enroll"
    else:
        return None
    request.session[_PENDING] = {
        "user": user.pk,
        # Of the password: a login does not outlive its change.
        "hash": user.get_session_auth_hash(),
        "until": clock.now().timestamp() + PENDING_SECONDS,
        "following": following,
    }
    if not request.user.is_authenticated:
        request.session.set_expiry(PENDING_SECONDS)
    return HttpResponseRedirect(reverse(page))


def find_pending_login(request: HttpRequest) -> PendingLogin | None:
    """Return the login that waits for its second factor; None if there is none or it expired."""
    found = cast(dict[str, Any] | None, request.session.get(_PENDING))
    if found is None or found["until"] <= clock.now().timestamp():
        return None
    user = User.objects.filter(pk=found["user"]).first()
    if user is None or not may_log_in(user) or user.get_session_auth_hash() != found["hash"]:
        return None
    return PendingLogin(user, found["following"])


def has_session(request: HttpRequest) -> bool:
    """Return whether the request has a session of a user, with the user's second factor.

    A session that began before the user had one continues after a code of it.
    """
    user = find_session_user(request)
    if user is None:
        return False
    if request.session.get(SECOND_FACTOR) is None:
        return factor_of(user) is None and not settings.CELLRUN.require_totp
    return True


def find_session_user(request: HttpRequest) -> User | None:
    """Return the user of the session, also if it needs a second factor.

    None if there is no session. A session ends with the second factor that it began with.
    """
    user = request.user
    if not isinstance(user, User) or not may_log_in(user):
        return None
    is_valid = request.session.get(SECOND_FACTOR) in (None, PROVIDER, factor_of(user))
    return user if is_valid else None


def factor_of(user: User) -> str | None:
    """Return the user's second factor, as sessions name it; None if the user has none."""
    device = getattr(user, "totp_device", None)
    return None if device is None else f"totp {device.pk}"


def has_permission(request: HttpRequest) -> bool:
    """Return whether the session may use the admin."""
    return has_session(request) and may_use_admin(request.user)


def own_path(request: HttpRequest, user: User, following: str) -> str:
    """Return `following` if it is an address of this site that the user may open, or `home_of`."""
    is_own = url_has_allowed_host_and_scheme(
        following, {request.get_host()}, require_https=request.is_secure()
    )
    if is_own and (may_use_admin(user) or not is_page_of_admin(following)):
        return following
    return home_of(user)


def home_of(user: User) -> str:
    """Return the address of the first page: the overview of the admin, or the own account."""
    return reverse("admin:index" if may_use_admin(user) else "account")


def is_page_of_admin(path: str) -> bool:
    """Return whether a page is one of the admin; those of the login are not."""
    return path.startswith(reverse("admin:index")) and not path.startswith(reverse("admin:login"))
