"""Flower's Celery app, which bounds what Flower keeps, and protects its `/metrics` by the login.

By default, `/metrics`, which names workers, is public. `/healthcheck`, which returns OK,
stays public. The login may be in the file that FLOWER_BASIC_AUTH_FILE names.
"""

import os
from typing import Any

from django.conf import settings
from flower.events import EventsState, PrometheusMetrics
from flower.urls import settings as flower_settings
from flower.views.monitor import Metrics
from tornado.web import authenticated

from controlplane.config.celery import app
from controlplane.config.env import read_secret_file
from controlplane.config.flower.pages import extend_pages
from controlplane.contract.secret_files import resolve_secret_files
from controlplane.limits.flower_events import EventBounds

# Flower itself reads only the variable. Faults were reported when the settings were loaded.
_resolved, _ = resolve_secret_files(os.environ, ["FLOWER_BASIC_AUTH"], read_secret_file)
if "FLOWER_BASIC_AUTH" in _resolved:
    os.environ["FLOWER_BASIC_AUTH"] = _resolved["FLOWER_BASIC_AUTH"]
# Flower takes each FLOWER_ variable for one of its options, and warns of others.
os.environ.pop("FLOWER_BASIC_AUTH_FILE", None)

Metrics.get = authenticated(Metrics.get)

_bounds = EventBounds(app.tasks)
_record, _observe = EventsState.event, PrometheusMetrics.observe_task


def _record_bounded(state: Any, event: dict[str, Any]) -> None:
    kept = _bounds.bounded(event)
    if kept is not None:
        _record(state, kept)


def _observe_bounded(metrics: Any, worker: str, event: dict[str, Any], task: Any) -> None:
    name = _bounds.counted_name(event.get("name") or task.name)
    _observe(metrics, worker, {**event, "name": name}, task)


EventsState.event = _record_bounded
PrometheusMetrics.observe_task = _observe_bounded
extend_pages(flower_settings, admin_url=f"{settings.CELLRUN.public_url}/admin")

__all__ = ["app"]
