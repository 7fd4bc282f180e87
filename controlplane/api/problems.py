"""Render every error as a problem document (RFC 9457) that names fields and limits."""

import json
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

import structlog
from django.core.exceptions import RequestDataTooBig
from django.db import InterfaceError, InternalError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from psycopg.errors import IdleInTransactionSessionTimeout
from rest_framework.exceptions import APIException, Throttled
from structlog.contextvars import get_contextvars

from controlplane.commands.attempts.artifacts import (
    ArtifactQuotaExceeded,
    ProjectStorageExceeded,
)
from controlplane.commands.attempts.logs import BadUpload, StreamFull, WrongOffset
from controlplane.commands.jobs.submit import SubmissionsSuspended
from controlplane.contract.artifacts import STORED_BYTES
from controlplane.domain.errors import Conflict, NotFound, NotPermitted
from controlplane.domain.jobs.concurrency import ConcurrencyKeyFull
from controlplane.domain.jobs.submission import GuidTaken, JobsRefused, TaskGuidTaken
from controlplane.queries.attempts.artifacts import ExternalArtifact
from controlplane.queries.events import PositionGone
from controlplane.spec import Fault, InvalidSpec, UnreadableDocument
from controlplane.storage.interface import StoreFull, StoreUnavailable

log = structlog.get_logger(__name__)

CONTENT_TYPE = "application/problem+json"


_NO_RESOURCE = "no resource has this URL, or a name in it is not valid"


class BadQuery(Exception):
    """A query parameter is invalid."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.fault = Fault(field, detail)


def problem(
    status: int,
    detail: str,
    *,
    faults: Iterable[Fault] = (),
    headers: Mapping[str, str] | None = None,
    **more: Any,
) -> HttpResponse:
    """Return a problem document with `more` as extension members."""
    request_id = get_contextvars().get("request_id")
    errors = [{"field": fault.field, "detail": fault.detail} for fault in faults]
    document: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        **({"errors": errors} if errors else {}),
        **({"request_id": request_id} if request_id else {}),
        **more,
    }
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return HttpResponse(text, content_type=CONTENT_TYPE, status=status, headers=headers)


def answer_error(error: Exception, context: Mapping[str, Any]) -> HttpResponse:
    """Return the response for an exception of a view (REST framework's EXCEPTION_HANDLER)."""
    answer = _answer_refusal(error) or _answer_state(error) or _answer_framework(error)
    if answer is None:
        log.exception("request_failed", path=context["request"].path)
        answer = problem(500, "internal error: the log of the web process has the details")
    return answer


def _answer_refusal(error: Exception) -> HttpResponse | None:
    """Answer errors in the request itself."""
    match error:
        case JobsRefused():
            faults = [fault for _, fault in error.faults]
            return problem(422, _summary(faults), faults=faults)
        case InvalidSpec():
            return problem(422, _summary(error.faults), faults=error.faults)
        case UnreadableDocument():
            return problem(400, str(error))
        case BadQuery():
            return problem(400, str(error), faults=[error.fault])
    return None


def _answer_state(error: Exception) -> HttpResponse | None:
    """Answer conflicts with stored state, and an unavailable database or store."""
    match error:
        case NotFound():
            return problem(404, str(error))
        case NotPermitted():
            return problem(403, str(error))
        case ExternalArtifact():
            return problem(409, str(error), uri=error.uri)
        case ArtifactQuotaExceeded():
            return problem(413, str(error))
        case ProjectStorageExceeded():
            return problem(507, str(error), code=STORED_BYTES)
        case GuidTaken() | TaskGuidTaken():
            return problem(409, str(error), faults=[Fault("guid", str(error))])
        case ConcurrencyKeyFull():
            return problem(409, str(error), faults=[Fault("concurrency.key", str(error))])
        case Conflict():
            return problem(409, str(error))
        case WrongOffset():
            return problem(409, str(error), size=error.size)
        case StreamFull():
            return problem(410, str(error), size=error.size)
        case PositionGone():
            return problem(410, str(error))
        case BadUpload():
            return problem(401, str(error), headers={"WWW-Authenticate": "Cellrun-Mac"})
        case StoreFull():
            log.warning("store_full", error=str(error))
            return problem(507, str(error), headers={"Retry-After": "30"}, code="store_full")
        case SubmissionsSuspended():
            return problem(503, str(error), headers={"Retry-After": "30"})
        case StoreUnavailable():
            log.warning("store_unavailable", error=str(error))
            return problem(
                503,
                "the store of files does not respond: try again later",
                headers={"Retry-After": "2"},
            )
        case (
            OperationalError()
            | InterfaceError()
            | InternalError(__cause__=IdleInTransactionSessionTimeout())
        ):
            log.warning("database_unavailable", error=str(error))
            return problem(
                503, "the database does not respond: try again later", headers={"Retry-After": "1"}
            )
    return None


def _answer_framework(error: Exception) -> HttpResponse | None:
    match error:
        case RequestDataTooBig():
            return problem(413, str(error))
        case Http404():
            return problem(404, _NO_RESOURCE)
        case Throttled(wait=seconds):  # type: ignore[misc]  # it is missing in the stubs
            return problem(
                429,
                f"too many requests, or too expensive ones: try again in {seconds} s",
                headers={"Retry-After": str(seconds)},
            )
        case APIException():
            headers = {"Allow": error.allow} if hasattr(error, "allow") else {}
            if scheme := getattr(error, "auth_header", None):
                headers["WWW-Authenticate"] = scheme
            return problem(error.status_code, str(error.detail), headers=headers)
    return None


def _summary(faults: Iterable[Fault]) -> str:
    first, *others = faults
    return f"{first} (and {len(others)} more)" if others else str(first)


@csrf_exempt
def nothing_here(request: HttpRequest) -> HttpResponse:
    """Return 404 for any unknown URL of the API."""
    return problem(404, _NO_RESOURCE)
