"""Settings that follow from the scheme of the public URL; Django's checks for deployment."""

import os
import subprocess
import sys

import pytest

from tests.architecture.source import ROOT

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
        timeout=60,
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
