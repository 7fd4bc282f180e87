"""Endpoints of alerts: auditors and operators list them, operators close them."""

from functools import partial
from typing import Any

from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane import clock
from controlplane.api.base import ApiView, MayAudit
from controlplane.api.openapi import Operation, parameter
from controlplane.api.requests import read_part
from controlplane.api.schemas import CloseAlertRequest
from controlplane.commands.state.findings import close_alert
from controlplane.domain.alerts import ALERTS, AlertKind
from controlplane.queries.pages.alerts import get_alert, list_alerts

_OPEN = "open"
_STATES = (_OPEN, "closed", "all")


class AlertSerializer(serializers.Serializer[Any]):
    """An alert with its meaning and what to do."""

    id = serializers.IntegerField()
    kind = serializers.CharField(help_text="Its name in the documentation, such as `cell_lost`.")
    severity = serializers.SerializerMethodField(help_text="`warning` or `critical`.")
    subject = serializers.CharField(help_text="What it is about, such as the name of a cell.")
    text = serializers.CharField()
    raised_at = serializers.DateTimeField()
    last_raised_at = serializers.DateTimeField()
    cleared_at = serializers.DateTimeField(
        allow_null=True, help_text="When it was closed; null: it is open."
    )
    meaning = serializers.SerializerMethodField(help_text="In Markdown.")
    remedy = serializers.SerializerMethodField(help_text="What to do, in Markdown.")

    def get_severity(self, alert: Any) -> str:
        """Return the severity of its kind."""
        kind = _kind(alert)
        return kind.severity.value if kind else "warning"

    def get_meaning(self, alert: Any) -> str:
        """Return the meaning of its kind."""
        kind = _kind(alert)
        return kind.meaning if kind else ""

    def get_remedy(self, alert: Any) -> str:
        """Return what to do."""
        kind = _kind(alert)
        return kind.action if kind else ""


class Alerts(ApiView):
    """Alerts about cells, ticks and work."""

    permission_classes = (IsAuthenticated, MayAudit)
    serializer_class = AlertSerializer
    lookup_url_kwarg = "alert_id"
    lookup_value_converter = "id"

    @Operation(
        id="list_alerts",
        page=True,
        parameters=[
            parameter("state", "`open` (the default), `closed` or `all`."),
            parameter("kind", "Only alerts of this kind, such as `cell_lost`."),
            parameter("subject", "Only alerts about this subject."),
        ],
        problems=(403,),
    )
    def list(self, request: Request) -> Response:
        """List alerts, newest first (auditors and operators)."""
        state = self.query.choice("state", _STATES) or _OPEN
        found = partial(
            list_alerts,
            is_open=None if state == "all" else state == _OPEN,
            kind=self.query.text("kind"),
            subject=self.query.text("subject"),
        )
        return self.answer_page(found, "id")

    @Operation(id="get_alert", problems=(403,))
    def retrieve(self, request: Request, alert_id: int) -> Response:
        """Show an alert (auditors and operators)."""
        return self.answer(get_alert(alert_id))

    @Operation(body=CloseAlertRequest, problems=(403,))
    @action(detail=True, methods=["post"], url_path="close")
    def close_alert(self, request: Request, alert_id: int) -> Response:
        """Close an alert, which is raised again if its cause persists (operators). Repeatable."""
        options = read_part(request, CloseAlertRequest)
        close_alert(alert_id=alert_id, actor=self.actor, reason=options.reason, now=clock.now())
        return self.answer(get_alert(alert_id))


def _kind(alert: Any) -> AlertKind | None:
    return ALERTS.get(alert.kind)  # None: raised by another release
