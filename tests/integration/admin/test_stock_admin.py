"""The same classes stand on Django's own admin, for installations that leave unfold out."""

import subprocess
import sys

PROGRAM = """
from controlplane.config import settings
settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if "unfold" not in app]
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.config.settings"
import django
django.setup()
from django.contrib import admin
from django.core.checks import run_checks
from django.template.loader import get_template
bases = {cls for registered in admin.site._registry.values() for cls in type(registered).__mro__}
assert not any(cls.__module__.startswith("unfold") for cls in bases)
assert run_checks() == []
for name in ("detail", "confirm", "index"):
    get_template(f"controlplane/{name}.html")
print(len(admin.site._registry))
"""


def test_every_page_class_works_without_unfold() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 10
