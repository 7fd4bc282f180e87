"""Generate docs/settings.md: every setting with its default, format and meaning.

Names and defaults come from the control plane's settings model and from the cell's module. The
formats of the control plane's settings come from its validation errors.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from controlplane.config.env import (
    SETTING_NAMES,
    ControlPlaneSettings,
    InvalidSettings,
    load_settings,
)
from controlplane.config.process_settings import OF_TRACES, READ_BY, REQUIRED, secrets_of
from controlplane.contract.secret_files import SECRET_SETTINGS, STORE_CREDENTIALS
from controlplane.contract.settings_names import CELL, CONTROL_PLANE, STACK
from docgen.tables import table
from workers.config import BROKER_LOGINS, DRIVERS

ROOT = Path(__file__).resolve().parents[1]

MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "DATABASE_URL": "Address of PostgreSQL 15 or newer.",
        "CELERY_BROKER_URL": "Address of Redis 6.2 or newer (or Valkey); the same for all cells.",
        "CELLRUN_ADVISORY_LOCKS": "Ticks of one kind run one at a time. `false` is for tests: the"
        " result is the same, some work is done twice.",
        "CELLRUN_ALLOWED_HOSTS": "Accepted host names of web.",
        "CELLRUN_ARTIFACT_ROOT": "Folder of stored inputs, logs, outputs and checkpoints.",
        "CELLRUN_AUDIT_DAYS": "Retention of audit lines ([retention](retention.md)).",
        "CELLRUN_CALLBACKS_AT_ONCE": "Maximum number of concurrent callbacks.",
        "CELLRUN_CACHE_DAYS": "Time without a hit after which an entry of the cache is evicted.",
        "CELLRUN_CALLBACKS_PER_HOST": "Maximum number of concurrent callbacks to one host and"
        " port.",
        "CELLRUN_CALLBACK_ALLOWED_NETWORKS": "Non-public networks, such as `10.0.0.0/8`, that"
        " callbacks may reach ([callbacks](callbacks.md)).",
        "CELLRUN_CALLBACK_SECONDS": "Time limit of one try of a callback.",
        "CELLRUN_CONVERGENCE_INTERVAL_SECONDS": "Interval of ticks of convergence.",
        "CELLRUN_DEBUG": "Show Django's debug pages. Do not use where others can reach web.",
        "CELLRUN_FLOWER_URL": "Address of Flower for browsers; the admin links to it.",
        "CELLRUN_HEARTBEAT_SECONDS": "Interval of heartbeats of a cell.",
        "CELLRUN_HOME": "Folder for state outside the database.",
        "CELLRUN_LEASE_SECONDS": "Lease of a cell after its last heartbeat; at least twice"
        " `CELLRUN_HEARTBEAT_SECONDS`.",
        "CELLRUN_LOG_LEVEL": "Log level. Logs are JSON lines on standard error.",
        "CELLRUN_MAX_ARTIFACT_MIB": "Maximum total size of one attempt's artifacts in the control"
        " plane's store, in MiB.",
        "CELLRUN_MAX_BODY_BYTES": "Maximum size of a request body, in bytes.",
        "CELLRUN_MAX_CACHE_MIB": "Maximum total size of results and outputs in the cache, in MiB.",
        "CELLRUN_MAX_TASKS_PER_JOB": "Maximum number of tasks in one job.",
        "CELLRUN_MAX_UNFINISHED_TASKS_PER_USER": "Maximum number of unfinished tasks of one user.",
        "CELLRUN_METRICS_NETWORKS": "Networks from which `/metrics` may be read without a token"
        " ([operations](operations.md#monitoring)).",
        "CELLRUN_OIDC_CLIENT_ID": "Client id of web at the OpenID provider.",
        "CELLRUN_OIDC_CLIENT_SECRET": "Secret of that client.",
        "CELLRUN_OIDC_CREATE_USERS": "`false`: the provider's users log in only if an operator has"
        " linked them to a user ([login](login.md#users)).",
        "CELLRUN_OIDC_GROUPS": "Values of the claim and the groups of Cellrun that their users"
        " join at each login; without the value, users leave the group"
        " ([login](login.md#groups)).",
        "CELLRUN_OIDC_GROUPS_CLAIM": "The claim that contains the user's groups at the provider.",
        "CELLRUN_OIDC_ISSUER": "Address of the OpenID provider. With the client id and the client"
        " secret, users can log in with it ([login](login.md)).",
        "CELLRUN_OIDC_OPERATOR_GROUPS": "Values of the claim whose users are operators, until a"
        " login without them. Unset: logins change no operators.",
        "CELLRUN_OIDC_SCOPES": "Scopes that web requests from the provider. Some providers send"
        " groups only with a scope of its own.",
        "CELLRUN_ONE_OFF_SCHEDULING_SECONDS": "Scheduling timeout of one-off tasks in a pool"
        " without its own pending timeout.",
        "CELLRUN_OPEN_READING": "Whether every user may read the work of all projects"
        " ([projects](projects.md)).",
        "CELLRUN_PLACEMENT_INTERVAL_SECONDS": "Interval of passes of placement while tasks wait; a"
        " submission wakes placement at once.",
        "CELLRUN_PREPARED_STATEMENTS": "PostgreSQL plans frequent statements once for each"
        " connection. `false`: for each statement, as poolers without support for prepared"
        " statements need.",
        "CELLRUN_PROCESS": "Name of the process in its logs. With `web`, the process pools its"
        " database connections.",
        "CELLRUN_PUBLIC_URL": "Address of web for browsers and cells. Cells fetch inputs from it,"
        " and pages of Flower link to it.",
        "CELLRUN_REDIS_USERS": "Enrolment and revocation write the logins of cells into Redis"
        " ([cells](cells.md#the-logins-at-redis)).",
        "CELLRUN_REQUEST_BURST_UNITS": "[Units](api.md#limits-of-requests) that a token may spend"
        " at once, after a pause.",
        "CELLRUN_REQUEST_UNITS_PER_SECOND": "[Units](api.md#limits-of-requests) that a token may"
        " spend in a second, for each web process.",
        "CELLRUN_REQUIRE_TOTP": "`true`: users that log in with a password must set up a second"
        " factor before they can use the admin or their account"
        " ([login](login.md#the-second-factor)).",
        "CELLRUN_SEALING_KEY": "Seals stored [secrets](secrets.md#the-keys); without it they are"
        " sealed with a key that is derived from `CELLRUN_SECRET_KEY`.",
        "CELLRUN_SEALING_KEY_FALLBACKS": "Former sealing keys, until `manage.py reseal_secrets` has"
        " sealed all secrets again.",
        "CELLRUN_SECRET_KEY": "Signs sessions and links; the keys of all cells are derived from"
        " it.",
        "CELLRUN_SECRET_KEY_FALLBACKS": "Former secret keys, still accepted until `manage.py"
        " reseal_secrets` has sealed all secrets again ([secrets](secrets.md)).",
        "CELLRUN_START_SECONDS": "Time in which a cell must accept an order to run an attempt.",
        "CELLRUN_STORE_MIN_FREE_MIB": "Space that a store in a folder keeps free, in MiB; 0: none"
        " ([store](store.md#free-space)).",
        "CELLRUN_STORE_URL": "The store of inputs, logs, outputs and checkpoints: an object store"
        " ([the store](store.md)), or a folder instead of `CELLRUN_ARTIFACT_ROOT`.",
        "CELLRUN_SYNC_SECONDS": "Interval at which the inbox answers all waiting heartbeats; those"
        " of cells without attempts wait up to three times as long.",
        "CELLRUN_TRACE_URL": "Address of a trace for browsers, with `{trace_id}`; the job has the"
        " link.",
        "CELLRUN_TRACING": "`true`: jobs get [traces](tracing.md). Needs the extra"
        " `cellrun[tracing]`.",
        "CELLRUN_USAGE_MONTHS": "Months before the present one of which the totals of"
        " [usage](usage.md) are kept.",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "Address of the receiver of [traces](tracing.md);"
        " `/v1/traces` is appended.",
        "OTEL_EXPORTER_OTLP_HEADERS": "Headers of each request to that receiver, such as its"
        " token.",
        "OTEL_TRACES_SAMPLER_ARG": "Share of the jobs that get a trace, unless the `traceparent` of"
        " their submission decides.",
        "CELLRUN_CELL_ADDRESS": "Host for ports published on this cell. Default: the address that"
        " this host uses to reach web; if that is a loopback address, ports are published"
        " only there.",
        "CELLRUN_CELL_ALLOWED_NETWORKS": "Non-public networks from which inputs may be fetched"
        " ([artifacts](artifacts.md#allowed-addresses)). `pool`: the `input_networks` of the pool.",
        "CELLRUN_CELL_BROKER_LOGIN": "`key`: the cell uses [logins](cells.md#the-logins-at-redis)"
        " that follow from its name and key, instead of the one in `CELERY_BROKER_URL`.",
        "CELLRUN_CELL_CAPACITY": "Capacity of the cell. Resources that are not listed: the host's"
        " (memory less 512 MiB).",
        "CELLRUN_CELL_DRIVER": "How attempts run: `docker`, `process` (no isolation), `memory`"
        " (simulated).",
        "CELLRUN_CELL_EVACUATE": "When the cell stops, also stop its attempts; their tasks"
        " are requeued, free of charge. Otherwise containers continue and the successor"
        " adopts them.",
        "CELLRUN_CELL_EXEC": "`false`: users start no programs in attempts of this cell with"
        " `cellrun exec`, even if its pool allows it.",
        "CELLRUN_CELL_FILE_ROOTS": "Folders of this host below which jobs may use `file://`"
        " addresses. Unset: none.",
        "CELLRUN_CELL_FILE_SYSTEMS": "File systems of fsspec for inputs and outputs, with the"
        " credentials of this process; each needs its package.",
        "CELLRUN_CELL_HOME": "The cell's folder: journal, workspaces, logs.",
        "CELLRUN_CELL_KEY_FILE": "File with the key printed by `manage.py enroll_cell`."
        " The running cell takes another key from it.",
        "CELLRUN_CELL_LABELS": "Labels of the cell, for `constraints` and `group_by` of jobs.",
        "CELLRUN_CELL_MAX_FILES_MIB": "Maximum size of the inputs, the outputs, or the checkpoint"
        " of one attempt.",
        "CELLRUN_CELL_MAX_LOG_MIB": "Maximum stored size of each output stream of an attempt; a"
        " truncated stream ends with a note. Docker itself buffers at most 100 MiB that the"
        " cell has not read.",
        "CELLRUN_CELL_MOUNTS": "Folders of this host that tasks may mount, with everything below"
        " them, if their pool allows it, too; `any`: what the pool allows; `none`"
        " ([pools](pools.md#the-veto-of-a-cell)).",
        "CELLRUN_CELL_NAME": "The cell's name, as enrolled.",
        "CELLRUN_CELL_POOL": "The pool in which the cell expects to be; empty: that of its"
        " enrolment. If they differ the cell gets no work, or moves into the pool if cells may"
        " join it.",
        "CELLRUN_CELL_PRIVILEGED": "`false`: this cell refuses privileged tasks, and capabilities"
        " that not every task may have, even if its pool allows them"
        " ([pools](pools.md#the-veto-of-a-cell)).",
        "CELLRUN_CELL_RUNNERS": "Installed [runners](runners.md) that the cell offers as task"
        " types: names, or `all`.",
        "CELLRUN_CELL_SECRETS": "Folder for secrets as files: in memory, used by this cell only,"
        " at the same path for the engine.",
        "CELLRUN_CELL_SECRETS_ON_DISK": "`true` allows that folder on a disk.",
        "CELLRUN_CELL_TAGS": "Placement tags: `a` is required of a task, `b?` is optional.",
        "CELLRUN_CONTROL_URL": "Address of web for this cell; logs are sent there.",
        "CELLRUN_INSTALLATION": "A label on every container, so that two installations on one"
        " engine ignore each other's containers.",
        "CELLRUN_ADMIN_PASSWORD": "`manage.py bootstrap`: the operator's password; default:"
        " random.",
        "CELLRUN_ADMIN_USER": "`manage.py bootstrap`: the operator's name.",
        "CELLRUN_OPERATOR_TOKEN": "`manage.py bootstrap`: the operator's token; default: random.",
        "CELLRUN_REDIS_SERVER": "The embedded stack: the `redis-server` binary.",
        "CELLRUN_TOKEN": "The command `cellrun`: the token; `manage.py bootstrap`: the submitter's"
        " token.",
        "CELLRUN_URL": "The command `cellrun`: the address of web.",
    }
)

CELL_EXPECTS: Mapping[str, str] = MappingProxyType(
    {
        "CELERY_BROKER_URL": "an address like redis://host:6379/0",
        "CELLRUN_CELL_ADDRESS": "a host name or an IP address",
        "CELLRUN_CELL_ALLOWED_NETWORKS": "networks such as 10.0.0.0/8,"
        " separated by commas, none, or pool",
        "CELLRUN_CELL_BROKER_LOGIN": "one of " + ", ".join(BROKER_LOGINS),
        "CELLRUN_CELL_CAPACITY": "pairs like cpu=2,memory=2048Mi,disk=10Gi,gpu=0",
        "CELLRUN_CELL_DRIVER": f"one of {', '.join(DRIVERS)}",
        "CELLRUN_CELL_EVACUATE": "true or false",
        "CELLRUN_CELL_EXEC": "true or false",
        "CELLRUN_CELL_FILE_ROOTS": "folders separated by commas",
        "CELLRUN_CELL_FILE_SYSTEMS": "names separated by commas",
        "CELLRUN_CELL_HOME": "a folder",
        "CELLRUN_CELL_KEY_FILE": "a file",
        "CELLRUN_CELL_LABELS": "pairs like zone=a,disk=ssd",
        "CELLRUN_CELL_MAX_FILES_MIB": "a whole number of MiB",
        "CELLRUN_CELL_MAX_LOG_MIB": "a whole number of MiB",
        "CELLRUN_CELL_MOUNTS": "folders separated by commas, any or none",
        "CELLRUN_CELL_NAME": "a name",
        "CELLRUN_CELL_POOL": "a name",
        "CELLRUN_CELL_PRIVILEGED": "true or false",
        "CELLRUN_CELL_RUNNERS": "names separated by commas, or all",
        "CELLRUN_CELL_SECRETS": "a folder in memory (tmpfs)",
        "CELLRUN_CELL_SECRETS_ON_DISK": "true or false",
        "CELLRUN_CELL_TAGS": "names separated by commas",
        "CELLRUN_CONTROL_URL": "an address like http://host:8000",
        "CELLRUN_INSTALLATION": "a name",
        "CELLRUN_LOG_LEVEL": "one of DEBUG, INFO, WARNING, ERROR",
    }
)

# Defaults that depend on other settings, in words.
DERIVED: Mapping[str, str] = MappingProxyType(
    {
        "CELLRUN_ALLOWED_HOSTS": "localhost, 127.0.0.1 and the host of `CELLRUN_PUBLIC_URL`",
        "CELLRUN_ARTIFACT_ROOT": "`artifacts` in `CELLRUN_HOME`",
        "CELLRUN_CELL_CAPACITY": "the host's",
        "CELLRUN_CELL_HOME": "`.cellrun/cells/` and its name",
        "CELLRUN_CELL_SECRETS": "a folder of its own in `/dev/shm`",
        "CELLRUN_HOME": "`.cellrun`",
        "CELLRUN_MAX_BODY_BYTES": "`4194304`",
        "CELLRUN_METRICS_NETWORKS": "`127.0.0.0/8,::1`",
        "CELLRUN_PROCESS": "`command`; each unit sets its own",
    }
)


def write() -> str:
    """Return the whole page."""
    control = ("DATABASE_URL", "CELERY_BROKER_URL", *sorted(CONTROL_PLANE), *OF_TRACES)
    cell = ("CELERY_BROKER_URL", *sorted(CELL))
    expects = control_plane_expects(control)
    return (
        "\n\n".join(
            [
                "# Settings\n\n<!-- Written by `make docs` from controlplane/config/env.py and"
                " workers/config.py; do not edit. -->",
                "Each process reads its settings from the environment at start. An unknown"
                " `CELLRUN_…` name and an invalid value are\nerrors; all errors are reported at"
                " once. One environment may contain the settings of control plane and cells.",
                "## Control plane",
                _table(control, control_plane_defaults(), expects),
                "Error messages do not repeat values that contain a password (`DATABASE_URL`,"
                " `CELERY_BROKER_URL`, `CELLRUN_SECRET_KEY`\nand its fallbacks,"
                " `CELLRUN_OIDC_CLIENT_SECRET`). Missing settings"
                " are taken from the stack that runs in `CELLRUN_HOME`, if any.",
                "## Secrets in files",
                "A secret may be in a file instead: `NAME_FILE` is the path of a file that"
                " contains the value of `NAME`. One line\nbreak at its end is not part of the"
                " value. `NAME` and `NAME_FILE` together, a file that cannot be read and an empty"
                " file\nare errors. Unlike variables, files are shown neither by `docker inspect`"
                " nor in `/proc`. These settings have this form:",
                "\n".join(f"* `{name}_FILE`" for name in SECRET_SETTINGS)
                + "\n* `CELLRUN_CELL_KEY_FILE`, the only form of a cell's key",
                "## The settings of each process",
                "Each process ignores settings that it does not read, and files of secrets that it"
                " does not read stay closed. Beat and\nFlower read neither the secret key nor the"
                " address of the database. A cell reads the address of the broker and its\nown"
                " key. The stack of `make up`, and the files in `deploy/`, give each process only"
                " what it reads.",
                table(("process", "secrets", "other settings"), _process_rows()),
                "## Cell",
                _table(cell, defaults("workers/config.py"), CELL_EXPECTS),
                "`DOCKER_HOST` is Docker's own setting: the address of the engine. Without it the"
                " usual sockets are tried.",
                "## Stack, command and bootstrap",
                table(("setting", "meaning"), ((f"`{n}`", MEANINGS[n]) for n in sorted(STACK))),
                "`make up` and `make demo` also read `WEB_PORT` (8000), `FLOWER_PORT` (5555),"
                " `CELLS` (2), `ENGINE` (docker,\nprocess, none). They pass all settings above to"
                " the processes, except those that the stack sets itself. Only the processes"
                " that\nreach a store (web, convergence, cells) inherit `AWS_…`, `AZURE_…` and"
                " `GOOGLE_…` from the shell.",
            ]
        )
        + "\n"
    )


def _process_rows() -> Iterator[tuple[str, str, str]]:
    """Yield process, secrets and other settings."""
    for process, names in READ_BY.items():
        secrets = ", ".join(f"`{name}`" for name in sorted(secrets_of(process)))
        others = sorted(names - set(SECRET_SETTINGS))
        unread = sorted(set(CONTROL_PLANE) - set(SECRET_SETTINGS) - names)
        if not unread:
            shown = "all of the control plane"
        elif len(unread) < len(others):
            shown = "all except " + ", ".join(f"`{name}`" for name in unread)
        else:
            shown = ", ".join(f"`{name}`" for name in others)
        yield "`manage.py`" if process == "command" else process, secrets, shown
    yield (
        "cell",
        ", ".join(f"`{name}`" for name in (*STORE_CREDENTIALS, "CELERY_BROKER_URL"))
        + ", the key in `CELLRUN_CELL_KEY_FILE`",
        "all [of the cell](#cell)",
    )


def _table(
    names: tuple[str, ...], default_of: Mapping[str, str], expects: Mapping[str, str]
) -> str:
    rows = (
        (
            f"`{name}`",
            DERIVED.get(name) or _shown(None if name in REQUIRED else default_of.get(name)),
            expects.get(name, ""),
            MEANINGS[name],
        )
        for name in names
    )
    return table(("setting", "default", "expects", "meaning"), rows)


def _shown(default: str | None) -> str:
    if default is None:
        return "must be set"
    return f"`{default}`" if default else "none"


def control_plane_defaults() -> dict[str, str]:
    """Return setting -> default, as written in the environment."""
    found: dict[str, str] = {}
    for name, known in SETTING_NAMES.items():
        default = ControlPlaneSettings.model_fields[known].default
        if isinstance(default, bool):
            found[name] = str(default).lower()
        elif isinstance(default, float):
            found[name] = f"{default:g}"
        elif isinstance(default, int | str | tuple):
            found[name] = str(default) if default != () else ""
    return found


def defaults(file: str) -> dict[str, str]:
    """Return setting -> default, if it is a string literal in the module that reads it."""
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        texts = [a.value if isinstance(a, ast.Constant) else None for a in node.args]
        if not isinstance(texts[0], str) or not re.fullmatch(r"[A-Z]+_[A-Z_]+", texts[0]):
            continue
        for text in texts[1:]:
            if isinstance(text, str):
                found[texts[0]] = text
    return found


def control_plane_expects(names: tuple[str, ...]) -> dict[str, str]:
    """Return setting -> expected format, from the error for an invalid value."""
    free_text = {"CELLRUN_HOME": "a folder"}
    try:
        load_settings({name: "\0 ," for name in names if name not in free_text})
    except InvalidSettings as refused:
        pattern = re.compile(r"^  (\w+): expected (.*?)(?:, not '.*)?$", re.MULTILINE)
        return free_text | dict(pattern.findall(str(refused)))
    raise AssertionError("nonsense was accepted")
