"""`cellrun artifacts`: what is listed, and what is written where."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from client.cli import app
from client.commands.artifacts import size_text
from tests.unit.client.documents import a_page, a_task
from tests.unit.client.stub_server import Api

UID = "11111111-2222-3333-4444-555555555555"
PATH = f"/api/v1/attempts/{UID}/artifacts"


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["artifacts", *words])


def left(api: Api, **contents: bytes) -> None:
    """The attempt left these; a name's `__` stands for /."""
    named = {name.replace("__", "/"): content for name, content in contents.items()}
    api.answer(f"GET {PATH}", a_page(*(entry(name, body) for name, body in named.items())))
    for name, content in named.items():
        api.answer(f"GET {PATH}/{name}", content)


def entry(name: str, content: bytes, uri: str = "") -> dict[str, Any]:
    return {
        "name": name,
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "uri": uri or f"{PATH}/{name}",
    }


def test_artifacts_of_the_last_attempt_are_listed(environment: Api) -> None:
    environment.answer("GET /api/v1/tasks/5", a_task(id=5))
    attempts = a_page({"uid": UID, "number": 2}, {"uid": "other", "number": 1})
    environment.answer("GET /api/v1/tasks/5/attempts", attempts)
    far = entry("far", b"x" * 2048, uri="s3://bucket/far")
    environment.answer(f"GET {PATH}", a_page(entry("model", b"x"), far))
    shown = [" ".join(line.split()) for line in call("5").stdout.splitlines()]
    assert shown[1:] == [
        f"model 1 B {hashlib.sha256(b'x').hexdigest()[:12]}",
        f"far 2.0 KiB {far['sha256'][:12]} s3://bucket/far",
    ]
    assert json.loads(call("5", "--json").stdout)[1] == far


def test_missing_artifacts_are_reported(environment: Api) -> None:
    left(environment)
    assert "has no artifacts" in call(UID).stdout


def test_one_artifact_is_written_to_standard_output_or_a_file(
    environment: Api, tmp_path: Path
) -> None:
    content = bytes(range(256)) * 4_000
    left(environment, model=content)
    assert call(UID, "model").stdout_bytes == content
    assert call(UID, "model", "-o", str(tmp_path / "new" / "it")).exit_code == 0
    assert (tmp_path / "new" / "it").read_bytes() == content


def test_folder_or_all_artifacts_are_written_to_a_folder(environment: Api, tmp_path: Path) -> None:
    left(environment, plots__a=b"a", plots__deep__b=b"b", plotting=b"c")
    assert call(UID, "plots", "-o", str(tmp_path / "one")).exit_code == 0
    assert files_in(tmp_path / "one") == {"a": b"a", "deep/b": b"b"}
    assert call(UID, "-o", str(tmp_path / "all")).exit_code == 0
    assert files_in(tmp_path / "all") == {"plots/a": b"a", "plots/deep/b": b"b", "plotting": b"c"}
    assert call(UID, "plots").exit_code == 2
    assert "has no artifact none: omit NAME to list all" in call(UID, "none").stderr


def files_in(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_artifact_with_a_wrong_checksum_is_not_written(environment: Api, tmp_path: Path) -> None:
    environment.answer(f"GET {PATH}", a_page(entry("model", b"right")))
    environment.answer(f"GET {PATH}/model", b"wrong")
    done = call(UID, "model", "-o", str(tmp_path / "it"))
    assert (done.exit_code, "SHA-256" in done.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_artifact_name_outside_the_folder_is_refused(environment: Api, tmp_path: Path) -> None:
    environment.answer(f"GET {PATH}", a_page(entry("../evil", b"x")))
    environment.answer(f"GET {PATH}/../evil", b"x")
    assert call(UID, "-o", str(tmp_path / "out")).exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_externally_stored_artifact_error_has_its_location(environment: Api) -> None:
    environment.answer(f"GET {PATH}", a_page(entry("far", b"x", uri="s3://bucket/far")))
    detail = "far is kept at s3://bucket/far, and not here"
    environment.answer(f"GET {PATH}/far", {"title": "Conflict", "detail": detail}, status=409)
    done = call(UID, "far")
    assert (done.exit_code, "s3://bucket/far" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 30, "5.0 GiB")]
)
def test_sizes_have_units(size: int, text: str) -> None:
    assert size_text(size) == text
