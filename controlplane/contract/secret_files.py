"""Take secret settings from files: NAME_FILE is the path of a file with the value of NAME."""

from collections.abc import Callable, Iterable, Mapping

STORE_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_STORAGE_ACCOUNT_KEY",
)
"""Credentials of object stores, which their libraries read from variables only."""

SECRET_SETTINGS = (
    *STORE_CREDENTIALS,
    "CELERY_BROKER_URL",
    "CELLRUN_ADMIN_PASSWORD",
    "CELLRUN_OIDC_CLIENT_SECRET",
    "CELLRUN_OPERATOR_TOKEN",
    "CELLRUN_SEALING_KEY",
    "CELLRUN_SEALING_KEY_FALLBACKS",
    "CELLRUN_SECRET_KEY",
    "CELLRUN_SECRET_KEY_FALLBACKS",
    "CELLRUN_TOKEN",
    "DATABASE_URL",
    "FLOWER_BASIC_AUTH",
    "OTEL_EXPORTER_OTLP_HEADERS",
)
"""Settings whose values are secrets, or addresses that contain a password.

The key of a cell is not among them: CELLRUN_CELL_KEY_FILE is its only form.
"""

FILE_SUFFIX = "_FILE"
FILE_NAMES = frozenset(f"{name}{FILE_SUFFIX}" for name in SECRET_SETTINGS)

MAX_CHARS = 65_536
"""Longer files are something else, such as a log or a device."""


def resolve_secret_files(
    environ: Mapping[str, str], names: Iterable[str], read: Callable[[str], str]
) -> tuple[dict[str, str], list[str]]:
    """Return `environ` with the values of secrets in files, and one line for each fault.

    `names`: the secrets that the process reads; files of others are not opened. `read` returns the
    text of a file, or raises OSError or ValueError. One line break at the end of a file is not part
    of the value. An empty setting counts as unset, as everywhere.
    """
    found = {name: value for name, value in environ.items() if name not in FILE_NAMES}
    faults = []
    for name in sorted(names):
        path = environ.get(name + FILE_SUFFIX)
        if not path:
            continue
        if environ.get(name):
            faults.append(f"{name}: set {name} or {name}{FILE_SUFFIX}, not both")
            continue
        try:
            found[name] = _value(read(path))
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            faults.append(f"{name}{FILE_SUFFIX}: {path} cannot be used: {why}")
    return found, faults


def _value(text: str) -> str:
    value = text.removesuffix("\n").removesuffix("\r")
    if not value:
        raise ValueError("it is empty")
    if len(value) > MAX_CHARS:
        raise ValueError(f"it is longer than {MAX_CHARS} characters")
    if "\n" in value or "\0" in value:
        raise ValueError("it has more than one line")
    return value
