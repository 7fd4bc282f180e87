"""Send spans with OTLP over HTTP, by OpenTelemetry's exporter; imported only if tracing is on."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from controlplane.domain.tracing import SpanFacts

TIMEOUT_SECONDS = 10.0
"""Of one page, with the exporter's own retries."""

_SCOPE = InstrumentationScope("cellrun")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class SpanSender:
    """Sends spans to one receiver."""

    def __init__(self, endpoint: str, headers: Mapping[str, str]) -> None:
        self._exporter = OTLPSpanExporter(
            endpoint=f"{endpoint}/v1/traces", headers=dict(headers), timeout=TIMEOUT_SECONDS
        )
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence.
        self._resource = Resource({"service.name": "cellrun"}).merge(Resource.create())
        if self._resource.attributes["service.name"] == "unknown_service":
            self._resource = self._resource.merge(Resource({"service.name": "cellrun"}))

    def send(self, spans: Sequence[SpanFacts]) -> bool:
        """Send spans; return whether the receiver has accepted them."""
        found = [self._readable(span) for span in spans]
        return self._exporter.export(found) is SpanExportResult.SUCCESS

    def close(self) -> None:
        """Close the connections."""
        self._exporter.shutdown()

    def _readable(self, span: SpanFacts) -> ReadableSpan:
        return ReadableSpan(
            name=span.name,
            context=_context(span.trace_id, span.span_id, is_remote=False),
            parent=_context(span.trace_id, span.parent_id, is_remote=True)
            if span.parent_id
            else None,
            resource=self._resource,
            attributes=span.attributes,
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, span.message) if span.is_failed else Status(),
            start_time=_nanoseconds(span.started_at),
            end_time=_nanoseconds(span.ended_at),
            instrumentation_scope=_SCOPE,
        )


def _context(trace_id: str, span_id: str, *, is_remote: bool) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote, _SAMPLED)


def _nanoseconds(at: datetime) -> int:
    """Return the exact time; a float of seconds would round its microseconds."""
    whole = int(at.replace(microsecond=0).timestamp())
    return whole * 1_000_000_000 + at.microsecond * 1_000
