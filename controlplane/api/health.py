"""Whether this process lives (/healthz) and whether the system can work (/readyz), for machines."""

import json

from django.conf import settings
from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from kombu.connection import Connection


def healthz(request: HttpRequest) -> HttpResponse:
    """Answer 200 as long as the web process can answer at all; nothing else is asked."""
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> HttpResponse:
    """Answer 200 when database and broker answer, else 503 with what does not."""
    checks = {"database": _ask_database(), "broker": _ask_broker()}
    ready = all(answer == "ok" for answer in checks.values())
    return HttpResponse(
        json.dumps({"status": "ok" if ready else "not ready", "checks": checks}),
        content_type="application/json",
        status=200 if ready else 503,
    )


def _ask_database() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as fault:
        return f"no answer: {type(fault).__name__}"
    return "ok"


def _ask_broker() -> str:
    options = {**settings.CELERY_BROKER_TRANSPORT_OPTIONS, "max_retries": 1}
    try:
        with Connection(
            settings.CELERY_BROKER_URL, connect_timeout=1, transport_options=options
        ) as broker:
            broker.default_channel.client.ping()
    except Exception as fault:  # each transport has its own family of errors
        return f"no answer: {type(fault).__name__}"
    return "ok"
