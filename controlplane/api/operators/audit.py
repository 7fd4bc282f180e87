"""Endpoint of the audit log: auditors and operators list it, and programs follow it."""

from functools import partial

from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.base import ApiView, MayAudit
from controlplane.api.openapi import Operation, parameter
from controlplane.api.operators.serializers import AuditLineSerializer
from controlplane.api.problems import BadQuery
from controlplane.commands.audit import Action
from controlplane.domain.errors import NotFound
from controlplane.domain.scopes import split_project_name
from controlplane.queries.tenancy.access import find_project_place
from controlplane.queries.tenancy.audit import (
    AuditFilter,
    follow_audit_lines,
    list_audit_lines,
)


class AuditLog(ApiView):
    """The audit log."""

    permission_classes = (IsAuthenticated, MayAudit)
    serializer_class = AuditLineSerializer

    @Operation(
        id="list_audit_lines",
        page=True,
        parameters=[
            parameter("actor", "Name of the user, cell or component."),
            parameter("action", "Name of the action, such as cancel.job."),
            parameter("subject", "The whole subject, such as `job 17`."),
            parameter("token", "Name of the token."),
            parameter("project", "`domain/name`; `name` alone is in the domain `default`."),
            parameter("since", "Only lines from this instant on, in ISO 8601 with time zone."),
            parameter("until", "Only lines before this instant."),
            parameter(
                "after",
                "List oldest first, after the line with this id (0: from the first one on). Lines"
                " appear when all earlier ones are known, so that a follower misses none.",
                int,
            ),
        ],
        problems=(403,),
    )
    def list(self, request: Request) -> Response:
        """List audit lines, newest first; with `after`, oldest first (auditors and operators)."""
        wanted = AuditFilter(
            actor=self.query.text("actor"),
            action=self._action(),
            subject=self.query.text("subject"),
            token=self.query.text("token"),
            project=self._project(),
            since=self.query.instant("since"),
            until=self.query.instant("until"),
        )
        after = self.query.number("after", least=0)
        if after is None:
            return self.answer_page(partial(list_audit_lines, wanted), "pk")

        def follow(*, after: int | None, limit: int, first: int = after) -> list[object]:
            return list(follow_audit_lines(wanted, after=after or first, limit=limit))

        return self.answer_page(follow, "pk", "after")

    def _action(self) -> str | None:
        name = self.query.text("action")
        if name is not None and name not in set(map(str, Action)):
            raise BadQuery("action", f"there is no action {name}")
        return name

    def _project(self) -> str | None:
        name = self.query.text("project")
        if name is not None:
            domain, project = split_project_name(name)
            try:
                find_project_place(domain, project)
            except NotFound as fault:
                raise BadQuery("project", str(fault)) from None
        return name
