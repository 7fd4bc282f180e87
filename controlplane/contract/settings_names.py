"""All names of CELLRUN_* variables, so that each side can reject unknown ones.

One environment may contain the settings of a control plane and of a cell. Each side validates its
own and ignores the other's; a name in none of these tuples is rejected at start.
"""

from collections.abc import Iterable

from controlplane.contract.secret_files import FILE_NAMES

CONTROL_PLANE = (
    "CELLRUN_ADVISORY_LOCKS",
    "CELLRUN_ALLOWED_HOSTS",
    "CELLRUN_ARTIFACT_ROOT",
    "CELLRUN_AUDIT_DAYS",
    "CELLRUN_CALLBACKS_AT_ONCE",
    "CELLRUN_CACHE_DAYS",
    "CELLRUN_CALLBACKS_PER_HOST",
    "CELLRUN_CALLBACK_ALLOWED_NETWORKS",
    "CELLRUN_CALLBACK_SECONDS",
    "CELLRUN_CONVERGENCE_INTERVAL_SECONDS",
    "CELLRUN_DEBUG",
    "CELLRUN_FLOWER_URL",
    "CELLRUN_HEARTBEAT_SECONDS",
    "CELLRUN_HOME",
    "CELLRUN_LEASE_SECONDS",
    "CELLRUN_LOG_LEVEL",
    "CELLRUN_MAX_ARTIFACT_MIB",
    "CELLRUN_MAX_BODY_BYTES",
    "CELLRUN_MAX_CACHE_MIB",
    "CELLRUN_MAX_TASKS_PER_JOB",
    "CELLRUN_MAX_UNFINISHED_TASKS_PER_USER",
    "CELLRUN_METRICS_NETWORKS",
    "CELLRUN_OIDC_CLIENT_ID",
    "CELLRUN_OIDC_CLIENT_SECRET",
    "CELLRUN_OIDC_CREATE_USERS",
    "CELLRUN_OIDC_GROUPS",
    "CELLRUN_OIDC_GROUPS_CLAIM",
    "CELLRUN_OIDC_ISSUER",
    "CELLRUN_OIDC_OPERATOR_GROUPS",
    "CELLRUN_OIDC_SCOPES",
    "CELLRUN_ONE_OFF_SCHEDULING_SECONDS",
    "CELLRUN_OPEN_READING",
    "CELLRUN_PLACEMENT_INTERVAL_SECONDS",
    "CELLRUN_PREPARED_STATEMENTS",
    "CELLRUN_PROCESS",
    "CELLRUN_PUBLIC_URL",
    "CELLRUN_REDIS_USERS",
    "CELLRUN_REQUEST_BURST_UNITS",
    "CELLRUN_REQUEST_UNITS_PER_SECOND",
    "CELLRUN_REQUIRE_TOTP",
    "CELLRUN_SEALING_KEY",
    "CELLRUN_SEALING_KEY_FALLBACKS",
    "CELLRUN_SECRET_KEY",
    "CELLRUN_SECRET_KEY_FALLBACKS",
    "CELLRUN_START_SECONDS",
    "CELLRUN_STORE_MIN_FREE_MIB",
    "CELLRUN_STORE_URL",
    "CELLRUN_SYNC_SECONDS",
    "CELLRUN_TRACE_URL",
    "CELLRUN_TRACING",
    "CELLRUN_USAGE_MONTHS",
)
"""Read by controlplane.config.env."""

CELL = (
    "CELLRUN_CELL_ADDRESS",
    "CELLRUN_CELL_ALLOWED_NETWORKS",
    "CELLRUN_CELL_BROKER_LOGIN",
    "CELLRUN_CELL_CAPACITY",
    "CELLRUN_CELL_DRIVER",
    "CELLRUN_CELL_EVACUATE",
    "CELLRUN_CELL_EXEC",
    "CELLRUN_CELL_FILE_ROOTS",
    "CELLRUN_CELL_FILE_SYSTEMS",
    "CELLRUN_CELL_HOME",
    "CELLRUN_CELL_KEY_FILE",
    "CELLRUN_CELL_LABELS",
    "CELLRUN_CELL_MAX_FILES_MIB",
    "CELLRUN_CELL_MAX_LOG_MIB",
    "CELLRUN_CELL_MOUNTS",
    "CELLRUN_CELL_NAME",
    "CELLRUN_CELL_POOL",
    "CELLRUN_CELL_PRIVILEGED",
    "CELLRUN_CELL_RUNNERS",
    "CELLRUN_CELL_SECRETS",
    "CELLRUN_CELL_SECRETS_ON_DISK",
    "CELLRUN_CELL_TAGS",
    "CELLRUN_CONTROL_URL",
    "CELLRUN_INSTALLATION",
    "CELLRUN_LOG_LEVEL",
)
"""Read by workers.config."""

FLEET = (
    "CELLRUN_FLEET_KEYS",
    "CELLRUN_FLEET_PREFIX",
    "CELLRUN_FLEET_SIZE",
)
"""Read by workers.fleet_config, beside those of a cell."""

STACK = (
    "CELLRUN_ADMIN_PASSWORD",
    "CELLRUN_ADMIN_USER",
    "CELLRUN_OPERATOR_TOKEN",
    "CELLRUN_REDIS_SERVER",
    "CELLRUN_TOKEN",
    "CELLRUN_URL",
)
"""Written or read by the embedded stack and the client; no server process reads them."""

ALL_NAMES = frozenset(CONTROL_PLANE + CELL + FLEET + STACK)

# Variables of tasks. A task may run a Cellrun program (the command, a nested cell).
TASK_NAMES = frozenset(
    {
        "CELLRUN_ATTEMPT_NUMBER",
        "CELLRUN_ATTEMPT_UID",
        "CELLRUN_CELL",
        "CELLRUN_GANG_HOSTS",
        "CELLRUN_GANG_RANK",
        "CELLRUN_GANG_SIZE",
        "CELLRUN_GROUP",
        "CELLRUN_JOB_ID",
        "CELLRUN_JOB_NAME",
        "CELLRUN_REPLICAS",
        "CELLRUN_ROOT",
        "CELLRUN_TASK_ID",
        "CELLRUN_TASK_INDEX",
    }
)
TASK_PREFIXES = ("CELLRUN_PORT_",)


def unknown_names(names: Iterable[str]) -> list[str]:
    """Return the undefined names among `names` that start with CELLRUN_, sorted."""
    known = ALL_NAMES | FILE_NAMES | TASK_NAMES
    return sorted(
        name
        for name in names
        if name.startswith("CELLRUN_") and name not in known and not name.startswith(TASK_PREFIXES)
    )
