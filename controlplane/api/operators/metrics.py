"""Serve Prometheus metrics from the database, so that every web process returns the same."""

from collections.abc import Iterator

from django.conf import settings
from django.http import HttpResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from controlplane.api.base import BearerAuthentication, IgnoreAccept, MayAudit
from controlplane.domain.metrics import METRICS
from controlplane.limits.addresses import find_address
from controlplane.queries.views.metrics import load_figures


class _Figures(Collector):
    def collect(self) -> Iterator[GaugeMetricFamily]:
        families: dict[str, GaugeMetricFamily] = {}
        for figure in load_figures():
            metric = METRICS[figure.name]
            family = families.setdefault(
                figure.name,
                GaugeMetricFamily(figure.name, metric.meaning, labels=metric.labels),
            )
            family.add_metric([figure.labels[name] for name in metric.labels], figure.value)
        yield from families.values()


class IsListedAddress(BasePermission):
    """Allow requests from the networks in CELLRUN_METRICS_NETWORKS."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Return whether the address of the caller is known and in one of the networks."""
        address = find_address(request)
        networks = settings.CELLRUN.metrics_networks
        return address is not None and any(address in network for network in networks)


class Metrics(APIView):
    """All metrics in Prometheus's text format, for listed addresses, auditors and operators."""

    authentication_classes = (BearerAuthentication,)
    permission_classes = (IsListedAddress | MayAudit,)
    content_negotiation_class = IgnoreAccept
    schema = None

    def get(self, request: Request) -> HttpResponse:
        """Return the metrics."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Figures())
        return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)
