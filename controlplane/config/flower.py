"""The Celery app that Flower is started with: its figures need its login, as all its pages do.

Without it, Flower answers `/metrics`, which names jobs and workers, to anyone. `/healthcheck` stays
open: it answers OK.
"""

from flower.views.monitor import Metrics
from tornado.web import authenticated

from controlplane.config.celery import app

Metrics.get = authenticated(Metrics.get)

__all__ = ["app"]
