"""The web process: Django behind ASGI middleware for requests that would hold its threads."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.config.settings")
os.environ.setdefault("CELLRUN_PROCESS", "web")

_django = get_asgi_application()

# These imports need Django to be set up.
from django.conf import settings  # noqa: E402

from controlplane.api.body_limit import BodyLimit  # noqa: E402
from controlplane.api.request_ids import RequestIds  # noqa: E402
from controlplane.api.work.follow import LogFollow  # noqa: E402

application = RequestIds(BodyLimit(LogFollow(_django), max_bytes=settings.CELLRUN.max_body_bytes))
