"""A secret may be in a file; a fault names the setting, and never the value."""

import pytest

from controlplane.contract.secret_files import MAX_CHARS, SECRET_SETTINGS, resolve_secret_files
from controlplane.contract.settings_names import unknown_names

FILES = {
    "/run/key": "s3cret\n",
    "/run/windows": "s3cret\r\n",
    "/run/spaces": "  s3cret \n",
    "/run/bare": "s3cret",
    "/run/empty": "\n",
    "/run/lines": "one\ntwo\n",
    "/run/log": "x" * (MAX_CHARS + 1),
}


def read(path: str) -> str:
    if path == "/run/closed":
        raise PermissionError(13, "Permission denied", path)
    if path not in FILES:
        raise FileNotFoundError(2, "No such file or directory", path)
    return FILES[path]


def resolve(**environ: str) -> tuple[dict[str, str], list[str]]:
    return resolve_secret_files(environ, SECRET_SETTINGS, read)


@pytest.mark.parametrize("name", SECRET_SETTINGS)
def test_each_secret_is_read_from_its_file(name: str) -> None:
    assert resolve(**{f"{name}_FILE": "/run/key", "OTHER": "x"}) == (
        {name: "s3cret", "OTHER": "x"},
        [],
    )
    assert unknown_names([f"{name}_FILE"]) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [("/run/windows", "s3cret"), ("/run/spaces", "  s3cret "), ("/run/bare", "s3cret")],
)
def test_only_one_line_break_at_the_end_is_removed(path: str, value: str) -> None:
    assert resolve(DATABASE_URL_FILE=path) == ({"DATABASE_URL": value}, [])


def test_value_and_file_together_are_a_fault() -> None:
    _, faults = resolve(CELLRUN_SECRET_KEY="s3cret", CELLRUN_SECRET_KEY_FILE="/run/key")
    assert faults == [
        "CELLRUN_SECRET_KEY: set CELLRUN_SECRET_KEY or CELLRUN_SECRET_KEY_FILE, not both"
    ]


def test_empty_settings_count_as_unset() -> None:
    found, faults = resolve(CELLRUN_SECRET_KEY="", CELLRUN_SECRET_KEY_FILE="/run/key")
    assert (found["CELLRUN_SECRET_KEY"], faults) == ("s3cret", [])
    found, faults = resolve(CELLRUN_SECRET_KEY="given", CELLRUN_SECRET_KEY_FILE="")
    assert (found["CELLRUN_SECRET_KEY"], faults) == ("given", [])


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/run/absent", "No such file or directory"),
        ("/run/closed", "Permission denied"),
        ("/run/empty", "it is empty"),
        ("/run/lines", "it has more than one line"),
        ("/run/log", f"it is longer than {MAX_CHARS} characters"),
    ],
)
def test_unusable_file_is_a_fault_that_names_setting_and_path(path: str, why: str) -> None:
    found, faults = resolve(DATABASE_URL_FILE=path)
    assert faults == [f"DATABASE_URL_FILE: {path} cannot be used: {why}"]
    assert "DATABASE_URL" not in found


def test_files_of_secrets_that_the_process_does_not_read_stay_closed() -> None:
    environ = {"DATABASE_URL_FILE": "/run/closed", "CELERY_BROKER_URL_FILE": "/run/key"}
    found, faults = resolve_secret_files(environ, ["CELERY_BROKER_URL"], read)
    assert (found, faults) == ({"CELERY_BROKER_URL": "s3cret"}, [])
