"""Flower's Celery app, which protects Flower's `/metrics` by the login of its pages.

By default, `/metrics`, which names jobs and workers, is public. `/healthcheck`, which returns OK,
stays public.
"""

from flower.views.monitor import Metrics
from tornado.web import authenticated

from controlplane.config.celery import app

Metrics.get = authenticated(Metrics.get)

__all__ = ["app"]
