"""Serve Prometheus metrics from the database, so that every web process returns the same."""

from collections.abc import Iterator

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from controlplane.queries.views.metrics import load_figures


class _Figures(Collector):
    def collect(self) -> Iterator[GaugeMetricFamily]:
        families: dict[str, GaugeMetricFamily] = {}
        for figure in load_figures():
            family = families.setdefault(
                figure.name,
                GaugeMetricFamily(figure.name, figure.text, labels=list(figure.labels)),
            )
            family.add_metric(list(figure.labels.values()), figure.value)
        yield from families.values()


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Return all metrics in Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures())
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)
