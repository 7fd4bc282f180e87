"""Endpoints of callbacks: list them with their tries, repeat them, return the signing key."""

from functools import partial

from django.conf import settings
from rest_framework.decorators import action
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane import clock
from controlplane.api.base import ApiView, MaySubmit, caller_of, has_role
from controlplane.api.openapi import Operation
from controlplane.api.operators.serializers import (
    CallbackDetailSerializer,
    CallbackKeySerializer,
)
from controlplane.api.requests import read_part
from controlplane.api.schemas import EmptyRequest
from controlplane.api.walls import check_callback, check_job
from controlplane.commands.callbacks import repeat_callback
from controlplane.domain.callbacks.delivery import callback_key, key_text
from controlplane.domain.roles import Permission, Role
from controlplane.queries.callbacks import callbacks


class _SubmitToRead(MaySubmit):
    """Deny read-only tokens, since the key signs callbacks that receivers trust."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Return whether the caller is a submitter."""
        return has_role(request, Role.SUBMITTER)


class Callbacks(ApiView):
    """Callbacks about the ends of jobs and tasks."""

    serializer_class = CallbackDetailSerializer
    lookup_url_kwarg = "callback_id"
    lookup_value_converter = "id"

    @Operation(page=True)
    def list_callbacks_of_job(self, request: Request, job_id: int) -> Response:
        """List the callbacks of a job and its tasks with their last five tries, newest first."""
        check_job(self.access, job_id)
        return self.answer_page(partial(callbacks.list_callbacks, job_id), "id")

    @Operation(body=EmptyRequest, codes=(202,), problems=(409,))
    @action(detail=True, methods=["post"], url_path="repeat")
    def repeat_callback(self, request: Request, callback_id: int) -> Response:
        """Make a callback due now, whatever its state (the job's submitter, or a manager)."""
        check_callback(self.access, callback_id, Permission.CHANGE, "repeat")
        read_part(request, EmptyRequest)
        repeat_callback(callback_id=callback_id, actor=self.actor, now=clock.now())
        return self.answer(callbacks.get_callback(callback_id), status=202)


class CallbackKeys(ApiView):
    """The key that signs the caller's callbacks."""

    permission_classes = (IsAuthenticated, _SubmitToRead)
    serializer_class = CallbackKeySerializer

    @Operation(problems=(403,))
    def get_callback_key(self, request: Request) -> Response:
        """Show the key that signs the callbacks of the caller's jobs and tasks."""
        secret = settings.CELLRUN.secret_key
        key = callback_key(secret, user_id=caller_of(request).pk)
        return self.answer({"key": key_text(key)})
