"""The credentials of the object store may be in files: web signs its links with them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import pytest

from controlplane.config.env import load_settings
from controlplane.storage.objects.bucket import Bucket
from tests.harness.object_store import environment

VALUES = {
    "AWS_ACCESS_KEY_ID": "id-of-the-store",
    "AWS_SECRET_ACCESS_KEY": "secret-of-the-store",
    "AWS_SESSION_TOKEN": "token-of-the-session",
}
PLACE = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """The variables that name a file of each value."""
    for name, value in VALUES.items():
        (tmp_path / name).write_text(value + "\n")
    return {f"{name}_FILE": str(tmp_path / name) for name in VALUES}


@pytest.fixture(autouse=True)
def place() -> Iterator[None]:
    with environment(**PLACE):
        yield


def use(settings: Any, **environ: str) -> None:
    known = {
        "CELLRUN_HOME": "/nonexistent/cellrun",
        "CELLRUN_SECRET_KEY": "k" * 32,
        "DATABASE_URL": "postgresql://db/cells",
        "CELERY_BROKER_URL": "redis://127.0.0.1:6379/0",
    }
    settings.CELLRUN = load_settings({**known, **environ})


def link(method: Literal["GET", "PUT"] = "GET", key: str = "b") -> dict[str, list[str]]:
    return parse_qs(urlsplit(Bucket("s3://bucket/a").link(method, key)).query)


def links(settings: Any, files: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Links of the same second: with credentials in files, and in variables of the library."""
    while True:
        use(settings, **files)
        by_files = link()
        use(settings)
        with environment(**VALUES):
            by_variables = link()
        if by_files["X-Amz-Date"] == by_variables["X-Amz-Date"]:
            return by_files, by_variables


def test_links_are_signed_with_the_credentials_in_files(
    settings: Any, files: dict[str, str]
) -> None:
    by_files, by_variables = links(settings, files)
    assert by_files["X-Amz-Credential"][0].startswith("id-of-the-store/")
    assert by_files["X-Amz-Security-Token"] == ["token-of-the-session"]
    assert by_files == by_variables


def test_link_is_for_one_request_to_one_object_within_fifteen_minutes(
    settings: Any, files: dict[str, str]
) -> None:
    use(settings, **files)
    made = [link("GET"), link("PUT"), link("GET", "c")]
    while len({found["X-Amz-Date"][0] for found in made}) > 1:
        made = [link("GET"), link("PUT"), link("GET", "c")]
    assert len({found["X-Amz-Signature"][0] for found in made}) == 3
    assert {found["X-Amz-Expires"][0] for found in made} == {str(15 * 60)}


def test_credentials_are_not_shown(settings: Any, files: dict[str, str]) -> None:
    use(settings, **files, CELLRUN_STORE_URL="s3://bucket/a")
    shown = repr(settings.CELLRUN)
    assert settings.CELLRUN.store_url in shown
    assert not [value for value in VALUES.values() if value in shown]


@pytest.mark.parametrize("process", ["beat", "flower", "placement", "inbox", "callbacks"])
def test_processes_without_files_do_not_read_the_credentials(
    settings: Any, files: dict[str, str], process: str
) -> None:
    login = {"FLOWER_BASIC_AUTH": "oncall:x"}
    use(settings, **files, **login, CELLRUN_PROCESS=process)
    assert settings.CELLRUN.aws_secret_access_key == ""
    use(settings, **VALUES, **login, CELLRUN_PROCESS=process)
    assert settings.CELLRUN.aws_secret_access_key == ""
