"""Endpoints of callbacks: list delivery attempts, retry them, and return the signing key."""

from django.conf import settings
from django.http import HttpResponse
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.views import APIView

from controlplane import clock
from controlplane.api import openapi
from controlplane.api.base import ApiView, MaySubmit, caller_of, check_may_change, scopes_of
from controlplane.api.pages import PAGING, PageRequest
from controlplane.api.requests import Parameters, read_part
from controlplane.api.responses import answer
from controlplane.api.schemas import EmptyRequest
from controlplane.commands.callbacks import repeat_callback
from controlplane.commands.tenancy.accounts import SCOPE_OPERATE, SCOPE_SUBMIT
from controlplane.domain.callbacks.delivery import callback_key
from controlplane.queries.callbacks import callbacks


class _SubmitToRead(MaySubmit):
    """Deny read-only tokens, since the key signs callbacks that receivers trust."""

    message = "this needs a token of the scope submit"

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Whether the token may submit, and so be called back."""
        return bool(scopes_of(request) & {SCOPE_SUBMIT, SCOPE_OPERATE})


class JobCallbacks(ApiView):
    """The callbacks of a job."""

    @openapi.describe(
        "list_callbacks_of_job",
        answers={200: openapi.page_of("CallbackDetail")},
        parameters=openapi.PAGING,
        problems=(400, 404),
    )
    def get(self, request: Request, job_id: int) -> HttpResponse:
        """List the callbacks of a job and its tasks with their last tries, newest first."""
        page = PageRequest(request, Parameters(request, *PAGING))
        found = callbacks.list_callbacks(job_id, before=page.number, limit=page.limit + 1)
        return page.answer(found, lambda callback: callback["id"])


class CallbackRepeat(ApiView):
    """Try a callback again."""

    @openapi.describe(
        "repeat_callback",
        body="EmptyRequest",
        answers={202: openapi.ref("CallbackDetail")},
        problems=(400, 403, 404, 409, 413, 415, 422),
    )
    def post(self, request: Request, callback_id: int) -> HttpResponse:
        """Try a callback again now, however it ended (its job's submitter, or an operator)."""
        owner_id = callbacks.find_callback_owner(callback_id)
        read_part(request, EmptyRequest)
        check_may_change(request, owner_id, "repeat")
        repeat_callback(callback_id=callback_id, actor=request.user.get_username(), now=clock.now())
        return answer(callbacks.get_callback(callback_id), status=202)


class CallbackKeyView(ApiView):
    """The key of the caller's callbacks."""

    permission_classes = (IsAuthenticated, _SubmitToRead)

    @openapi.describe(
        "get_callback_key", answers={200: openapi.ref("CallbackKey")}, problems=(403,)
    )
    def get(self, request: Request) -> HttpResponse:
        """Show the key that signs the callbacks of the caller's jobs and tasks."""
        secret = settings.CELLRUN.secret_key
        key = callback_key(secret, user_id=caller_of(request).pk)
        return answer({"key": key.hex(), "algorithm": "HMAC-SHA256"})
