"""Endpoints of exec sessions: request, list, show, end."""

from functools import partial
from uuid import UUID

from rest_framework.request import Request
from rest_framework.response import Response

from controlplane import clock
from controlplane.api.base import ApiView, credential_of
from controlplane.api.exec import schemas
from controlplane.api.openapi import Operation
from controlplane.api.requests import read_part
from controlplane.api.walls import check_attempt
from controlplane.commands.attempts.exec_sessions import end_session_by_user, request_session
from controlplane.domain.roles import Permission
from controlplane.queries.attempts import exec_sessions


class ExecSessionsOfAttempt(ApiView):
    """Sessions of an attempt."""

    document = schemas.ExecDocument

    @Operation(page=True)
    def list_exec_sessions(self, request: Request, uid: UUID) -> Response:
        """List the exec sessions of an attempt, newest first."""
        check_attempt(self.access, uid)
        return self.answer_page(partial(exec_sessions.list_exec_sessions, uid), "number")

    @Operation(body=schemas.ExecSubmission, codes=(201,), problems=(409,))
    def exec_attempt(self, request: Request, uid: UUID) -> Response:
        """Run a program inside a running attempt (its submitter, or a manager).

        Connect to the WebSocket `/api/v1/exec/{uid}/stream` of the session within 30 s. 409: the
        attempt is not RUNNING, its cell does not answer, its pool does not allow exec, or there are
        too many sessions.
        """
        check_attempt(self.access, uid, Permission.EXEC)
        wanted = read_part(request, schemas.ExecSubmission)
        session = request_session(
            uid=uid,
            wanted=wanted.request(),
            actor=self.actor,
            token=credential_of(request).token_name,
            now=clock.now(),
        )
        made = self.answer(exec_sessions.get_exec_session(session), 201)
        made["Location"] = request.build_absolute_uri(f"/api/v1/exec/{session}")
        return made


class ExecSessions(ApiView):
    """One session."""

    document = schemas.ExecDocument
    lookup_url_kwarg = "session"
    lookup_value_converter = "uuid"

    def retrieve(self, request: Request, session: UUID) -> Response:
        """Show an exec session."""
        return self.answer(self._find(session, Permission.READ))

    @Operation(id="end_exec_session", problems=(409,))
    def destroy(self, request: Request, session: UUID) -> Response:
        """End an exec session: its program is killed (its submitter, or a manager).

        409: it has ended.
        """
        self._find(session, Permission.EXEC)
        end_session_by_user(session=session, actor=self.actor, now=clock.now())
        return Response(status=204)

    def _find(self, session: UUID, wanted: Permission) -> dict[str, object]:
        """Return the document of a session. Raise NotFound or PermissionDenied."""
        found = exec_sessions.get_exec_session(session)
        check_attempt(self.access, found["attempt"], wanted)
        return found
