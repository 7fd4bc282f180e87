"""Settings that follow from the scheme of the public URL; Django's checks for deployment."""

import os
import subprocess
import sys

import pytest

from tests.architecture.source import ROOT

PROXIED_REQUESTS = """
import asyncio, sys
import django
django.setup()
from asgiref.testing import ApplicationCommunicator
from controlplane.config.web.handler import SynchronousHandler
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
application = ProxyHeadersMiddleware(SynchronousHandler())

async def request(peer, scheme):
    headers = [(b"host", b"cellrun.example.com"), (b"x-forwarded-proto", scheme)]
    scope = {"type": "http", "http_version": "1.1", "method": "GET", "scheme": "http"}
    scope |= {"path": "/healthz", "query_string": b"", "headers": headers, "client": (peer, 1)}
    called = ApplicationCommunicator(application, scope)
    await called.send_input({"type": "http.request"})
    return dict((await called.receive_output(30))["headers"])

for peer, scheme in (("127.0.0.1", b"https"), ("127.0.0.1", b"http"), ("10.0.0.1", b"https")):
    found = asyncio.run(request(peer, scheme))
    print({name.lower(): text for name, text in found.items()}.get(b"strict-transport-security"))
"""
SECURE_REQUEST = """
import django
django.setup()
from django.test import Client
answer = Client().get("/healthz", secure=True, headers={"Host": "cellrun.example.com"})
assert answer.status_code == 200
print(answer.headers.get("Strict-Transport-Security"))
from django.conf import settings
print(settings.SESSION_COOKIE_SECURE, settings.CSRF_COOKIE_SECURE)
"""


def run(scheme: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python as the web process of an installation."""
    environment = {
        **os.environ,
        "CELLRUN_PUBLIC_URL": f"{scheme}://cellrun.example.com",
        # Of the length that deploy/control.env.example recommends.
        "CELLRUN_SECRET_KEY": "Wm1kQ2FybzVhZ3JkbnB0c2V4eGR6dGt5YmJ2bXF1ZmhqbGlvcA-_0123456789ab",
        "DJANGO_SETTINGS_MODULE": "controlplane.config.settings",
    }
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [("https", ["max-age=31536000", "True True"]), ("http", ["None", "False False"])],
)
def test_hsts_and_secure_cookies_follow_the_public_url(scheme: str, expected: list[str]) -> None:
    done = run(scheme, "-c", SECURE_REQUEST)
    assert done.stdout.splitlines() == expected, done.stderr


def test_checks_for_deployment_find_nothing_with_tls() -> None:
    done = run("https", "manage.py", "check", "--deploy", "--fail-level", "WARNING")
    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout


def test_hsts_is_sent_to_requests_that_a_proxy_received_over_tls() -> None:
    """A proxy on the same host; uvicorn ignores the header of all others."""
    done = run("https", "-c", PROXIED_REQUESTS)
    assert done.stdout.splitlines() == ["b'max-age=31536000'", "None", "None"], done.stderr
