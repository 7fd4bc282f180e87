"""The web process: Django behind ASGI middleware for requests that would hold its threads."""

import os
from importlib import import_module

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.config.settings")
os.environ.setdefault("CELLRUN_PROCESS", "web")

django.setup(set_prefix=False)

# These imports need Django to be set up.
from django.conf import settings  # noqa: E402

from controlplane.api.body_limit import BodyLimit  # noqa: E402
from controlplane.api.exec.gateway import ExecGateway  # noqa: E402
from controlplane.api.request_ids import RequestIds  # noqa: E402
from controlplane.api.streams.event_stream import EventStream  # noqa: E402
from controlplane.api.work.follow import LogFollow  # noqa: E402
from controlplane.config.collector import relax_collector  # noqa: E402
from controlplane.config.web.handler import SynchronousHandler  # noqa: E402
from controlplane.config.web.unchanged_pages import UnchangedPages  # noqa: E402

_application = EventStream(LogFollow(UnchangedPages(SynchronousHandler())))
_limited = BodyLimit(_application, max_bytes=settings.CELLRUN.max_body_bytes)
application = RequestIds(ExecGateway(_limited))

# Django would load all views with the first request, after the collector was tuned.
import_module(settings.ROOT_URLCONF)
relax_collector()
