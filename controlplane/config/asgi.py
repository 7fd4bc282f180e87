"""The web process: Django behind ASGI."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.config.settings")
os.environ.setdefault("CELLRUN_PROCESS", "web")

application = get_asgi_application()
