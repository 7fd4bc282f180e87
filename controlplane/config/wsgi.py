"""The web process for WSGI servers; following logs requires the ASGI one."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.config.settings")
os.environ.setdefault("CELLRUN_PROCESS", "web")

application = get_wsgi_application()
