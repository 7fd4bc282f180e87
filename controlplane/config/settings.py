"""Django's and Celery's settings, taken from the typed environment or fixed."""

import sys
from pathlib import Path
from typing import Any

from django.templatetags.static import static

from controlplane.config.beat import build_schedule
from controlplane.config.env import InvalidSettings, load_from_process
from controlplane.config.logs import build_logging
from controlplane.contract.log_lines import configure_structlog

try:
    CELLRUN = load_from_process()
except InvalidSettings as fault:
    # No traceback: the fault is in the environment, not in the code.
    sys.exit(str(fault))
"""The typed settings, available as `django.conf.settings.CELLRUN`."""

SECRET_KEY = CELLRUN.secret_key
SECRET_KEY_FALLBACKS = list(CELLRUN.secret_key_fallbacks)
DEBUG = CELLRUN.debug
ALLOWED_HOSTS = list(CELLRUN.allowed_hosts)
CSRF_TRUSTED_ORIGINS = [CELLRUN.public_url]
ROOT_URLCONF = "controlplane.config.urls"
ASGI_APPLICATION = "controlplane.config.asgi.application"
WSGI_APPLICATION = "controlplane.config.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-us"
APPEND_SLASH = False
DATA_UPLOAD_MAX_MEMORY_SIZE = CELLRUN.max_body_bytes

INSTALLED_APPS = [
    "unfold",  # before the admin, whose templates it replaces
    "unfold.contrib.filters",
    "django.contrib.admin.apps.SimpleAdminConfig",  # urls.py loads the pages
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "controlplane.apps.ControlplaneConfig",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "controlplane.config.web.content_policy.restrict_content",
    "controlplane.config.static.StaticFiles",
    "controlplane.api.conditional.compare_etags",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "controlplane.api.origins.bind_request",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [Path(__file__).parents[1] / "templates"],  # before those of unfold
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
            "libraries": {"alerts": "controlplane.admin.alert_count"},
        },
    }
]

# Only the web process uses a pool: its requests run in changing threads, so that Django's
# per-thread connections would be reopened for each. A Celery worker keeps its one connection, and
# checks it before a task uses it.
_POOLED = CELLRUN.process == "web"
_DATABASE_OPTIONS: dict[str, Any] = {
    # A process that hangs or is disconnected in a transaction must not keep its locks; pauses
    # between statements take a second at most. A statement that waits longer for a lock fails.
    # Open work is in memory, and statements read it by its keys: with PostgreSQL's cost of a random
    # page, 4, a batch of a thousand tasks scans a table of a hundred thousand. A table that is
    # empty now may be large when a prepared statement uses its plan: no plan scans a whole table
    # if an index can be used. Before PostgreSQL 18 that made other plans seem worth compiling.
    "options": "-c idle_in_transaction_session_timeout=15s -c lock_timeout=20s"
    " -c random_page_cost=1.1 -c enable_seqscan=off -c jit=off"
    " -c plan_cache_mode=force_generic_plan",
    # Only statements that ask for it are prepared, at their first use.
    "prepare_threshold": 1 if CELLRUN.prepared_statements else None,
    # A database host that vanished closes no connection: detect it within half a minute.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
    **CELLRUN.database.options,
    "application_name": f"cellrun-{CELLRUN.process}",
    "connect_timeout": 3,
}
if _POOLED:
    # 16 bounds concurrent statements of the web process; more would only queue in PostgreSQL.
    _DATABASE_OPTIONS["pool"] = {"min_size": 2, "max_size": 16, "timeout": 10}

# Beat and Flower have no database: Django raises an error if one of them uses it.
DATABASES: dict[str, dict[str, Any]] = {}
if CELLRUN.database.name:
    DATABASES["default"] = {
        "ENGINE": "controlplane.config.database",
        "NAME": CELLRUN.database.name,
        "USER": CELLRUN.database.user,
        "PASSWORD": CELLRUN.database.password,
        "HOST": CELLRUN.database.host,
        "PORT": CELLRUN.database.port,
        "CONN_MAX_AGE": 0 if _POOLED else None,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": _DATABASE_OPTIONS,
    }

_RULES = "django.contrib.auth.password_validation"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"{_RULES}.UserAttributeSimilarityValidator"},
    {"NAME": f"{_RULES}.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": f"{_RULES}.CommonPasswordValidator"},
    {"NAME": f"{_RULES}.NumericPasswordValidator"},
]
# From the login on, however often the session is used: a working day.
SESSION_COOKIE_AGE = 12 * 3600
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
_HAS_TLS = CELLRUN.public_url.startswith("https:")
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _HAS_TLS
# A year, for browsers that came over TLS.
SECURE_HSTS_SECONDS = 365 * 24 * 3600 if _HAS_TLS else 0
SILENCED_SYSTEM_CHECKS = [
    # HSTS for subdomains, and the browsers' lists: web does not know the other hosts.
    "security.W005",
    "security.W021",
    # Redirects are the proxy's: health checks and cells may reach web itself, without TLS.
    "security.W008",
]
X_FRAME_OPTIONS = "DENY"

# The web process itself serves static files from the installed packages.
STATIC_URL = "/static/"
STATIC_ROOT = None
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = False

configure_structlog()
LOGGING = build_logging(CELLRUN.log_level, CELLRUN.process)

REST_FRAMEWORK = {
    "DEFAULT_SCHEMA_CLASS": "controlplane.api.openapi.ApiSchema",
    "EXCEPTION_HANDLER": "controlplane.api.problems.answer_error",
    # Not passwords, which only the admin's login accepts.
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
}

SPECTACULAR_SETTINGS = {
    "TITLE": "Cellrun",
    "DESCRIPTION": "Runs container tasks on many machines.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "POSTPROCESSING_HOOKS": ["controlplane.api.openapi.add_job_schemas"],
    "SERVE_INCLUDE_SCHEMA": False,
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    "SERVE_AUTHENTICATION": [],
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    # From local static files, so that the documentation works without the Internet.
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
}

LOGIN_REDIRECT_URL = "admin:index"
AUTHENTICATION_BACKENDS = ["controlplane.queries.tenancy.permissions.AccountBackend"]
UNFOLD = {
    "SITE_TITLE": "Cellrun",
    "SITE_HEADER": "Cellrun",
    "SITE_SYMBOL": "stacks",
    "SITE_URL": None,
    "SITE_FAVICONS": [
        {
            "rel": "icon",
            "type": "image/svg+xml",
            "href": lambda request: static("controlplane/icon.svg"),
        }
    ],
    "SHOW_HISTORY": False,
    "SHOW_VIEW_ON_SITE": False,
    "SCRIPTS": [
        lambda request: static("controlplane/live.js"),
        lambda request: static("controlplane/charts.js"),
        lambda request: static("controlplane/lines.js"),
        lambda request: static("controlplane/tools.js"),
    ],
    "DASHBOARD_CALLBACK": "controlplane.admin.overview.page.overview_context",
    "ACCOUNT": {"navigation": "controlplane.admin.sidebar.account_links"},
    "SIDEBAR": {
        "navigation": "controlplane.admin.sidebar.navigation",
        "show_search": True,
        "command_search": True,
    },
    # The blue of a running task, so that links have one colour everywhere.
    "COLORS": {
        "primary": {
            "50": "#ddf4ff",
            "100": "#b6e3ff",
            "200": "#80ccff",
            "300": "#54aeff",
            "400": "#218bff",
            "500": "#0969da",
            "600": "#0969da",
            "700": "#0550ae",
            "800": "#033d8b",
            "900": "#0a3069",
            "950": "#002155",
        }
    },
}

# Celery carries short commands: JSON, no results, removed as they are read, one at a time.
CELERY_BROKER_URL = CELLRUN.broker_url
# Celery prefers the variable CELERY_BROKER_URL to the setting, but not to these.
CELERY_BROKER_READ_URL = CELERY_BROKER_WRITE_URL = CELERY_BROKER_URL
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_RESULT_BACKEND = None
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = False
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_TIMEZONE = "UTC"
CELERY_ENABLE_UTC = True
CELERY_IMPORTS = [
    "controlplane.ticks.placement",
    "controlplane.ticks.convergence",
    "controlplane.ticks.callbacks",
    "controlplane.ticks.hooks",
    "controlplane.ticks.notifications",
    "controlplane.ticks.retention",
    "controlplane.ticks.tracing",
]
CELERY_TASK_DEFAULT_QUEUE = "unrouted"
CELERY_TASK_ROUTES = {
    "controlplane.ticks.placement": {"queue": "placement"},
    "controlplane.ticks.convergence": {"queue": "convergence"},
    "controlplane.ticks.callbacks": {"queue": "callbacks"},
    "controlplane.ticks.hooks": {"queue": "callbacks"},
    "controlplane.ticks.notifications": {"queue": "callbacks"},
    "controlplane.ticks.retention": {"queue": "convergence"},
    "controlplane.ticks.tracing": {"queue": "callbacks"},
}
CELERY_BEAT_SCHEDULE = build_schedule(CELLRUN)
CELERY_BEAT_SCHEDULER = "controlplane.config.beat:Scheduler"
# Beat checks its schedule at least this often, so an interval below 5 s is kept.
CELERY_BEAT_MAX_LOOP_INTERVAL = 1
CELERY_WORKER_SEND_TASK_EVENTS = True
# Remote control has no authentication: any client of Redis could stop placement. Flower needs only
# events.
CELERY_WORKER_ENABLE_REMOTE_CONTROL = False
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_REDIRECT_STDOUTS = False
# No retries in publishing: convergence sends again.
CELERY_TASK_PUBLISH_RETRY = False
CELERY_BROKER_CONNECTION_TIMEOUT = 1
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_BROKER_TRANSPORT_OPTIONS = {
    # One list per queue instead of one per priority.
    "priority_steps": [0],
    "socket_connect_timeout": 1,
    "socket_timeout": 5,
    "socket_keepalive": True,
    "health_check_interval": 10,
    # A worker that reconnects waits at most 5 s between two tries.
    "interval_start": 0,
    "interval_step": 1,
    "interval_max": 5,
}
