"""Log requests with a token that is refused, and record some of them in the audit log."""

import structlog
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from controlplane import clock
from controlplane.commands.tenancy.logins import record_refused_token
from controlplane.limits.addresses import find_address, find_network
from controlplane.limits.buckets import Buckets, Limit

log = structlog.get_logger(__name__)

# A client with an expired token repeats its requests; the log has all of them.
AUDITED = Limit(per_second=1 / 60, burst=1)

_audited = Buckets()


def note_refusal(request: Request, fault: AuthenticationFailed) -> None:
    """Log a request whose token is refused; record one per minute of each `find_network`.

    Neither has the token, which may be one of another installation.
    """
    address, reason = str(find_address(request)), str(fault.detail)
    log.warning("token_refused", address=address, path=request.path, reason=reason)
    if not _audited.take(find_network(request), 1, AUDITED):
        record_refused_token(reason=reason, now=clock.now())
