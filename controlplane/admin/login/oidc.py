"""Login with an OpenID provider: the pages that a browser visits before and after it."""

import structlog
from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from controlplane import clock
from controlplane.admin.login.form import give_back_login, take_login
from controlplane.admin.login.provider import ProviderFault, begin_login, finish_login
from controlplane.admin.login.sessions import PROVIDER, open_session
from controlplane.commands.tenancy.identities import log_in_identity
from controlplane.commands.tenancy.logins import delete_expired_sessions, record_login
from controlplane.domain.errors import NotPermitted
from controlplane.domain.identities import GroupRules, ProviderUser
from controlplane.limits.addresses import find_address, find_network

log = structlog.get_logger(__name__)

UNKNOWN = "unknown (OpenID)"
"""The actor of a failed login without a verified user."""

PENDING_SECONDS = 1200
"""The time that a user has for the login at the provider."""

_NEXT = "oidc_next"

FAILED = "The login with single sign-on failed. Try again."
UNREACHABLE = "The single sign-on provider does not answer as expected. Try again later."
REFUSED = "You cannot log in: {reason}. Contact an operator."


@require_GET
@never_cache
def start(request: HttpRequest) -> HttpResponse:
    """Redirect the browser to the provider."""
    _require_oidc()
    if seconds := take_login(find_network(request)):
        return _throttle(request, seconds)
    try:
        answer = begin_login(request, callback=_callback())
    except ProviderFault as fault:
        return _fail(request, UNREACHABLE, str(fault))
    request.session[_NEXT] = request.GET.get("next", "")
    if not request.user.is_authenticated:
        request.session.set_expiry(PENDING_SECONDS)
    delete_expired_sessions(now=clock.now())
    return answer


@require_GET
@never_cache
def callback(request: HttpRequest) -> HttpResponse:
    """Start the session of the user that the provider's response names."""
    _require_oidc()
    network = find_network(request)
    if seconds := take_login(network):
        return _throttle(request, seconds)
    following = request.session.pop(_NEXT, "")
    try:
        identity = finish_login(request)
    except ProviderFault as fault:
        return _fail(request, FAILED, str(fault))
    now = clock.now()
    try:
        user = log_in_identity(
            identity, rules=_rules(), may_create=settings.CELLRUN.oidc_create_users, now=now
        )
    except NotPermitted as refusal:
        text = REFUSED.format(reason=refusal)
        return _fail(request, text, str(refusal), identity=identity)
    give_back_login(network)  # what this page took, and what the page before it took
    give_back_login(network)
    return open_session(request, user, following=following, detail="with OpenID", factor=PROVIDER)


def _require_oidc() -> None:
    if not settings.CELLRUN.has_oidc:
        raise Http404


def _callback() -> str:
    """Return the address that is registered at the provider."""
    return f"{settings.CELLRUN.public_url}{reverse('oidc_callback')}"


def _rules() -> GroupRules:
    wanted = settings.CELLRUN
    return GroupRules(wanted.oidc_groups, frozenset(wanted.oidc_operator_groups))


def _throttle(request: HttpRequest, seconds: float) -> HttpResponse:
    log.warning("login_throttled", user=UNKNOWN, address=str(find_address(request)))
    messages.error(request, f"Too many failed logins. Try again in {seconds:.0f} s.")
    return HttpResponseRedirect(reverse("admin:login"))


def _fail(
    request: HttpRequest, text: str, reason: str, identity: ProviderUser | None = None
) -> HttpResponse:
    """Log and record a failed login, and return to the login page, which shows `text`."""
    name, address = identity.name if identity else UNKNOWN, str(find_address(request))
    log.warning("login_failed", user=name, address=address, method="oidc", reason=reason)
    detail = f"with OpenID: {reason}"
    if identity is not None:
        detail = f"with OpenID ({identity.subject} of {identity.issuer}): {reason}"
    record_login(name=name, address=address, succeeded=False, now=clock.now(), detail=detail)
    messages.error(request, text)
    return HttpResponseRedirect(reverse("admin:login"))
