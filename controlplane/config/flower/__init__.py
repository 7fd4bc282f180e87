"""Flower, read-only and behind a login.

`app`: its Celery app, and the bounds of what it keeps. `pages`: links to the admin on its pages,
and a page about each worker.
"""

from controlplane.config.flower.app import app

__all__ = ["app"]
