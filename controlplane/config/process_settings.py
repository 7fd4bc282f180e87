"""Define which settings each process of the control plane reads; it ignores all others.

Beat and Flower read neither the database's address nor the secret key: a fault in Flower, a program
of others with a web page, reveals neither.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from controlplane.contract.secret_files import SECRET_SETTINGS, STORE_CREDENTIALS
from controlplane.contract.settings_names import CONTROL_PLANE

Process = Literal[
    "web", "placement", "convergence", "inbox", "callbacks", "beat", "flower", "command"
]

REQUIRED = ("CELERY_BROKER_URL", "CELLRUN_SECRET_KEY", "DATABASE_URL")

_EVERYWHERE = frozenset(
    {"CELERY_BROKER_URL", "CELLRUN_HOME", "CELLRUN_LOG_LEVEL", "CELLRUN_PROCESS"}
)
# Flower's own setting, which no other process needs.
_FLOWER_LOGIN = "FLOWER_BASIC_AUTH"
# The standard variables of OpenTelemetry.
OF_TRACES = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_TRACES_SAMPLER_ARG",
)
_ALL = frozenset({*CONTROL_PLANE, *REQUIRED, *STORE_CREDENTIALS, *OF_TRACES})
# Settings of the admin's pages and logins, which only web serves.
_OF_WEB = frozenset(
    {
        "CELLRUN_FLOWER_URL",
        "CELLRUN_OPEN_READING",
        "CELLRUN_REQUIRE_TOTP",
        "CELLRUN_TRACE_URL",
        *(name for name in CONTROL_PLANE if name.startswith("CELLRUN_OIDC_")),
    }
)
# Only callbacks sends traces.
_OF_EXPORT = frozenset({"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_HEADERS"})
# Only web and convergence, and commands, reach the store.
_OF_STORE = frozenset(STORE_CREDENTIALS)

READ_BY: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "web": _ALL - _OF_EXPORT,
        "placement": _ALL - _OF_WEB - _OF_STORE - _OF_EXPORT,
        "convergence": _ALL - _OF_WEB - _OF_EXPORT,
        "inbox": _ALL - _OF_WEB - _OF_STORE - _OF_EXPORT,
        "callbacks": _ALL - _OF_WEB - _OF_STORE,
        "beat": _EVERYWHERE
        | {
            "CELLRUN_CONVERGENCE_INTERVAL_SECONDS",
            "CELLRUN_PLACEMENT_INTERVAL_SECONDS",
            "CELLRUN_TRACING",
        },
        # Its pages link to the admin.
        "flower": _EVERYWHERE | {_FLOWER_LOGIN, "CELLRUN_PUBLIC_URL"},
        "command": _ALL,
    }
)
"""Name of a process -> the settings that it reads."""


def secrets_of(process: str) -> frozenset[str]:
    """Return the secrets that a process reads."""
    return READ_BY.get(process, _ALL) & set(SECRET_SETTINGS)


def select_for(process: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without the settings of Cellrun that the process does not read."""
    unread = _ALL - READ_BY.get(process, _ALL)
    return {name: value for name, value in environ.items() if name not in unread}
