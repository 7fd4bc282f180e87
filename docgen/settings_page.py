"""docs/settings.md: every setting with its default, what it expects and what it means.

Names and defaults are read from the two modules that read the environment; what the control plane
expects is what it says when it refuses a value.
"""

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from controlplane.config.env import InvalidSettings, load_settings
from controlplane.contract.settings_names import CELL, CONTROL_PLANE, STACK
from docgen.tables import table

ROOT = Path(__file__).resolve().parents[1]

MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "DATABASE_URL": "Where PostgreSQL 15 or newer is.",
        "CELERY_BROKER_URL": "Where Redis 6.2 or newer (or Valkey) is; the same for all cells.",
        "CELLRUN_ADVISORY_LOCKS": "Ticks of one kind take turns. `false` is for tests: the result"
        " is the same, some work is done twice.",
        "CELLRUN_ALLOWED_HOSTS": "Host names under which web answers.",
        "CELLRUN_ARTIFACT_ROOT": "Stored inputs, and logs, outputs and checkpoints of attempts.",
        "CELLRUN_AUDIT_DAYS": "How long it is kept who deleted what ([retention](retention.md)).",
        "CELLRUN_CALLBACKS_AT_ONCE": "How many callbacks are being tried at any time.",
        "CELLRUN_CALLBACKS_PER_HOST": "How many of them to one host and port.",
        "CELLRUN_CALLBACK_ALLOWED_NETWORKS": "Networks, such as `10.0.0.0/8`, to which callbacks"
        " may go though they are not public; see [callbacks](callbacks.md).",
        "CELLRUN_CALLBACK_SECONDS": "How long one try may take in all.",
        "CELLRUN_CONVERGENCE_INTERVAL_SECONDS": "How often convergence runs.",
        "CELLRUN_DEBUG": "Django's debug pages. Never where others can reach web.",
        "CELLRUN_FLOWER_URL": "Where browsers reach Flower; the operators' pages link there.",
        "CELLRUN_HEARTBEAT_SECONDS": "How often cells beat.",
        "CELLRUN_HOME": "The folder for state that is not in the database.",
        "CELLRUN_LEASE_SECONDS": "How long a cell is believed in after its last heartbeat; at"
        " least twice the heartbeat.",
        "CELLRUN_LOG_LEVEL": "What is logged, as JSON lines on standard error (a cell: as text).",
        "CELLRUN_MAX_ARTIFACT_MIB": "What one attempt may leave in the control plane's store.",
        "CELLRUN_MAX_BODY_BYTES": "The largest request body.",
        "CELLRUN_MAX_TASKS_PER_JOB": "The most tasks in one job.",
        "CELLRUN_MAX_UNFINISHED_TASKS_PER_USER": "The most unfinished tasks of one user.",
        "CELLRUN_ONE_OFF_SCHEDULING_SECONDS": "How long a one-off task may wait to be placed, in a"
        " pool that has no pending timeout of its own.",
        "CELLRUN_PLACEMENT_INTERVAL_SECONDS": "How often placement looks by the clock while"
        " something waits; a submission wakes it at once.",
        "CELLRUN_PROCESS": "Which process this is, for its log lines; web also pools connections.",
        "CELLRUN_PUBLIC_URL": "Where browsers and cells reach web. Cells fetch inputs from there.",
        "CELLRUN_SECRET_KEY": "Signs sessions and links; all cells' keys are derived from it.",
        "CELLRUN_SECRET_KEY_FALLBACKS": "Former secret keys: what they signed or sealed is still"
        " read, until `manage.py reseal_secrets` has sealed it anew ([secrets](secrets.md)).",
        "CELLRUN_START_SECONDS": "How long a cell may take to begin with an attempt.",
        "CELLRUN_SYNC_SECONDS": "How often the inbox answers heartbeats, in one group.",
        "CELLRUN_CELL_ADDRESS": "The host at which others reach the ports that tasks publish on"
        " this cell. Unset: the address that this host has on the way to web; if that is a loopback"
        " address, ports are published there only.",
        "CELLRUN_CELL_ALLOWED_NETWORKS": "Networks, such as `127.0.0.0/8`, from which inputs may be"
        " fetched though they are loopback, link-local or the like; see"
        " [artifacts](artifacts.md).",
        "CELLRUN_CELL_CAPACITY": "What the cell gives away; what is not named is the host's"
        " (less 512 MiB of memory).",
        "CELLRUN_CELL_DRIVER": "How attempts run: `docker`, `process` (no isolation), `memory`"
        " (nothing runs).",
        "CELLRUN_CELL_EVACUATE": "On a stop, also stop what runs here; it goes back to wait, free"
        " of charge. Without it containers run on and are adopted by the successor.",
        "CELLRUN_CELL_FILE_ROOTS": "Folders of this machine below which jobs may read inputs from"
        " and write outputs to `file://` addresses. Unset: nowhere.",
        "CELLRUN_CELL_FILE_SYSTEMS": "Which of fsspec's file systems inputs and outputs may name,"
        " with what this process may reach there; each needs its package.",
        "CELLRUN_CELL_HOME": "The cell's own folder: journal, workspaces, logs.",
        "CELLRUN_CELL_KEY_FILE": "The file with the key that `manage.py enroll_cell` printed.",
        "CELLRUN_CELL_LABELS": "Facts about the cell, for `constraints` and `group_by` of jobs.",
        "CELLRUN_CELL_MAX_FILES_MIB": "What the inputs, the outputs, or the checkpoint of one"
        " attempt may have.",
        "CELLRUN_CELL_MAX_LOG_MIB": "What is kept of each output stream of an attempt; where it was"
        " cut is said at its end. Docker itself keeps at most 100 MiB of what the cell has not read"
        " yet.",
        "CELLRUN_CELL_NAME": "The cell's name, as enrolled.",
        "CELLRUN_CELL_POOL": "The pool that the cell joins when it registers, if there is one of"
        " that name.",
        "CELLRUN_CELL_RUNNERS": "Which installed [runners](runners.md) the cell offers as task"
        " types: names, or `all`.",
        "CELLRUN_CELL_SECRETS": "Where secrets lie that tasks get as files: a folder in memory,"
        " this cell's own, at the same path for the engine.",
        "CELLRUN_CELL_SECRETS_ON_DISK": "`true` lets that folder lie on a disk.",
        "CELLRUN_CELL_TAGS": "Placement tags: `a` is required of a task, `b?` is optional.",
        "CELLRUN_CONTROL_URL": "Where web answers for this cell: logs go there.",
        "CELLRUN_INSTALLATION": "Put on every container as a label, so that two installations on"
        " one engine leave each other's containers alone.",
        "CELLRUN_ADMIN_PASSWORD": "`manage.py bootstrap`: the operator's password; else drawn.",
        "CELLRUN_ADMIN_USER": "`manage.py bootstrap`: the operator's name.",
        "CELLRUN_OPERATOR_TOKEN": "`manage.py bootstrap`: the operator's token; else drawn.",
        "CELLRUN_REDIS_SERVER": "The embedded stack: the `redis-server` to use.",
        "CELLRUN_TOKEN": "The command `cellrun`: whose token; `manage.py bootstrap`: the"
        " submitter's.",
        "CELLRUN_URL": "The command `cellrun`: where web answers.",
    }
)

CELL_EXPECTS: Mapping[str, str] = MappingProxyType(
    {
        "CELERY_BROKER_URL": "an address like redis://host:6379/0",
        "CELLRUN_CELL_ADDRESS": "a host name or an IP address",
        "CELLRUN_CELL_ALLOWED_NETWORKS": "networks separated by commas",
        "CELLRUN_CELL_CAPACITY": "pairs like cpu=2,memory=2048Mi,disk=10Gi,gpu=0",
        "CELLRUN_CELL_DRIVER": "one of docker, process, memory",
        "CELLRUN_CELL_EVACUATE": "true or false",
        "CELLRUN_CELL_FILE_ROOTS": "folders separated by commas",
        "CELLRUN_CELL_FILE_SYSTEMS": "names separated by commas",
        "CELLRUN_CELL_HOME": "a folder",
        "CELLRUN_CELL_KEY_FILE": "a file",
        "CELLRUN_CELL_LABELS": "pairs like zone=a,disk=ssd",
        "CELLRUN_CELL_MAX_FILES_MIB": "a whole number of MiB",
        "CELLRUN_CELL_MAX_LOG_MIB": "a whole number of MiB",
        "CELLRUN_CELL_NAME": "a name",
        "CELLRUN_CELL_POOL": "a name",
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
        "CELLRUN_PROCESS": "`command`; each unit sets its own",
    }
)


def write() -> str:
    """The whole page."""
    control = ("DATABASE_URL", "CELERY_BROKER_URL", *sorted(CONTROL_PLANE))
    cell = ("CELERY_BROKER_URL", *sorted(CELL))
    expects = control_plane_expects(control)
    return (
        "\n\n".join(
            [
                "# Settings\n\n<!-- Written by `make docs` from controlplane/config/env.py and"
                " workers/config.py; do not edit. -->",
                "Settings come from the environment and are read once, at start. A value that is"
                " not what its name expects is\nrefused by name, and so is a `CELLRUN_…` name that"
                " nobody knows; all faults are told at once. One environment may\nhold the settings"
                " of both sides.",
                "## Control plane",
                _table(control, defaults("controlplane/config/env.py"), expects),
                "A name that holds a password (`DATABASE_URL`, `CELERY_BROKER_URL`,"
                " `CELLRUN_SECRET_KEY` and its fallbacks) is refused without\nrepeating its value."
                " What is left open is taken from the stack that runs in\n`CELLRUN_HOME`, if one"
                " does.",
                "## Cell",
                _table(cell, defaults("workers/config.py"), CELL_EXPECTS),
                "`DOCKER_HOST` is Docker's own: where the engine answers, else the usual sockets.",
                "## Stack, command and bootstrap",
                table(("setting", "meaning"), ((f"`{n}`", MEANINGS[n]) for n in sorted(STACK))),
                "`make up` and `make demo` also read `WEB_PORT` (8000), `FLOWER_PORT` (5555),"
                " `CELLS` (2), `ENGINE` (docker,\nprocess, none) and hand every setting above on to"
                " the processes, but for those that the stack decides itself.",
            ]
        )
        + "\n"
    )


def _table(
    names: tuple[str, ...], default_of: Mapping[str, str], expects: Mapping[str, str]
) -> str:
    rows = (
        (
            f"`{name}`",
            DERIVED.get(name) or _shown(default_of.get(name)),
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


def defaults(file: str) -> dict[str, str]:
    """Setting -> default, as far as it is written as a plain text in the reading module."""
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        texts = [a.value if isinstance(a, ast.Constant) else None for a in node.args]
        if not isinstance(texts[0], str) or not re.fullmatch(r"[A-Z]+_[A-Z_]+", texts[0]):
            continue
        for text in texts[1:]:
            if isinstance(text, str) and texts[0] not in MUST_BE_SET:
                found[texts[0]] = text
    return found


# Read with an empty default, which is then refused.
MUST_BE_SET = frozenset({"DATABASE_URL", "CELERY_BROKER_URL", "CELLRUN_SECRET_KEY"})


def control_plane_expects(names: tuple[str, ...]) -> dict[str, str]:
    """Setting -> what is expected of it, in the words in which a wrong value is refused."""
    free_text = {"CELLRUN_HOME": "a folder"}
    try:
        load_settings({name: "\0 ," for name in names if name not in free_text})
    except InvalidSettings as refused:
        pattern = re.compile(r"^  (\w+): expected (.*?)(?:, not '.*)?$", re.MULTILINE)
        return free_text | dict(pattern.findall(str(refused)))
    raise AssertionError("nonsense was accepted")
