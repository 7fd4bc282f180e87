"""Flower's Celery app, which protects Flower's `/metrics` by the login of its pages.

By default, `/metrics`, which names jobs and workers, is public. `/healthcheck`, which returns OK,
stays public. The login may be in the file that FLOWER_BASIC_AUTH_FILE names.
"""

import os

from flower.views.monitor import Metrics
from tornado.web import authenticated

from controlplane.config.celery import app
from controlplane.config.env import read_secret_file
from controlplane.contract.secret_files import resolve_secret_files

# Flower itself reads only the variable. Faults were reported when the settings were loaded.
_resolved, _ = resolve_secret_files(os.environ, ["FLOWER_BASIC_AUTH"], read_secret_file)
if "FLOWER_BASIC_AUTH" in _resolved:
    os.environ["FLOWER_BASIC_AUTH"] = _resolved["FLOWER_BASIC_AUTH"]
# Flower takes each FLOWER_ variable for one of its options, and warns of others.
os.environ.pop("FLOWER_BASIC_AUTH_FILE", None)

Metrics.get = authenticated(Metrics.get)

__all__ = ["app"]
