"""`cellrun artifacts` and `cellrun cp`: what is listed, and what is written where."""

import hashlib
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from typer.testing import CliRunner, Result

from cellrun.cli import app
from cellrun.display.render import size_text
from cellrun.downloads.files import Download
from cellrun.downloads.names import select_artifacts
from tests.unit.client.documents import a_page, a_task
from tests.unit.client.stub_server import Api

UID = "11111111-2222-3333-4444-555555555555"
TASK = "/api/v1/tasks/5/artifacts"
ATTEMPT = f"/api/v1/attempts/{UID}/artifacts"
BIG = bytes(range(256)) * 8_000
# A shell that starts the tests in the background makes them ignore Ctrl-C.
RUN = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    " from cellrun.cli import app; app()"
)


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def entry(name: str, content: bytes, base: str = TASK, uri: str = "") -> dict[str, Any]:
    return {
        "name": name,
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "uri": uri or f"{base}/{quote(name)}",
        "link": None if uri else f"{base}/{quote(name)}",
    }


def left(api: Api, base: str = TASK, **contents: bytes) -> None:
    """The task 5, or the attempt, left these; a name's `__` stands for /."""
    named = {name.replace("__", "/"): content for name, content in contents.items()}
    api.answer(f"GET {base}", a_page(*(entry(name, body, base) for name, body in named.items())))
    api.files |= {f"{base}/{name}": content for name, content in named.items()}


def job_left(api: Api, *tasks: tuple[str, int, dict[str, bytes]]) -> None:
    """The tasks of job 7, of these groups and indices, left these."""
    documents = []
    for number, (group, index, contents) in enumerate(tasks, 70):
        base = f"/api/v1/tasks/{number}/artifacts"
        items = [entry(name, content, base) for name, content in contents.items()]
        place = {"task": number, "group": group, "index": index, "attempt": UID}
        documents.append({**place, "artifacts": items})
        api.files |= {f"{base}/{quote(name)}": content for name, content in contents.items()}
    api.answer("GET /api/v1/jobs/7/artifacts", a_page(*documents))


def files_in(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def ranges(api: Api) -> list[str | None]:
    """The Range of each request for a file."""
    return [
        headers.get("Range")
        for call, _, headers, _ in api.requests
        if call.removeprefix("GET ") in api.files
    ]


# ----------------------------------------------------------------------------- lists


def test_artifacts_of_a_job_are_listed_by_task(environment: Api) -> None:
    job_left(environment, ("fit", 0, {"model": b"x"}), ("fit", 1, {"model": b"x" * 2048}))
    shown = [line.split() for line in call("artifacts", "7").stdout.splitlines()]
    assert [line[:4] for line in shown[1:]] == [
        ["fit.0", "model", "1", "B"],
        ["fit.1", "model", "2.0", "KiB"],
    ]
    (first, second) = json.loads(call("artifacts", "7", "-o", "json").stdout)
    assert (first["group"], first["index"], second["index"]) == ("fit", 0, 1)
    assert call("artifacts", "7", "--group", "fit").exit_code == 0
    assert "group=fit" in environment.requests[-1][1]


def test_artifacts_of_a_task_and_of_an_attempt_are_listed(environment: Api) -> None:
    far = entry("far", b"x" * 2048, uri="s3://bucket/far")
    environment.answer(f"GET {TASK}", a_page(entry("model", b"x"), far))
    environment.answer(f"GET {ATTEMPT}", a_page(far))
    environment.answer("GET /api/v1/jobs/7/tasks", a_page(a_task(id=5, group="fit", index=3)))
    for words in (["5", "--task"], ["7/fit.3"], ["7/3"]):
        shown = [" ".join(line.split()) for line in call("artifacts", *words).stdout.splitlines()]
        assert shown[1:] == [
            f"model 1 B {hashlib.sha256(b'x').hexdigest()[:12]}",
            f"far 2.0 KiB {far['sha256'][:12]} s3://bucket/far",
        ]
    assert json.loads(call("artifacts", UID, "-o", "json").stdout) == [far]
    assert json.loads(call("artifacts", "7/fit.3", "-o", "json").stdout)[1] == far
    shown = call("artifacts", "--task", "5", "m*").stdout.splitlines()
    assert [line.split()[0] for line in shown] == ["ARTIFACT", "model"]


def test_missing_artifacts_are_reported(environment: Api) -> None:
    left(environment)
    assert "no artifacts" in call("artifacts", "--task", "5").stdout
    assert call("artifacts", "--task", "5", "--get", "x").exit_code == 2
    assert call("artifacts", "--task", "6").exit_code == 2


# ----------------------------------------------------------------------------- downloads


def test_artifacts_of_a_job_are_written_by_group_and_index(
    environment: Api, tmp_path: Path
) -> None:
    job_left(
        environment,
        ("fit", 0, {"model": b"m0", "plots/a": b"a"}),
        ("fit", 1, {"model": b"m1"}),
        ("report", 0, {"text": b"", "a b/ü?#.txt": b"odd"}),
    )
    done = call("artifacts", "7", "--get", str(tmp_path / "new" / "all"), "--parallel", "3")
    assert (done.exit_code, done.stderr) == (0, f"{tmp_path}/new/all: 5 files, 8 B\n")
    assert files_in(tmp_path / "new" / "all") == {
        "fit/0/model": b"m0",
        "fit/0/plots/a": b"a",
        "fit/1/model": b"m1",
        "report/0/text": b"",
        "report/0/a b/ü?#.txt": b"odd",
    }
    assert call("artifacts", "7", "model", "plots", "--get", str(tmp_path / "some")).exit_code == 0
    assert set(files_in(tmp_path / "some")) == {"fit/0/model", "fit/0/plots/a", "fit/1/model"}


def test_complete_files_are_not_downloaded_again(environment: Api, tmp_path: Path) -> None:
    left(environment, a=b"same", b=b"changed", c=b"longer")
    for name, content in {"a": b"same", "b": b"CHANGED", "c": b"longer and more"}.items():
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / name).write_bytes(content)
    done = call("artifacts", "--task", "5", "--get", str(tmp_path / "out"))
    assert "3 files, 17 B, 1 of them complete before" in done.stderr
    assert files_in(tmp_path / "out") == {"a": b"same", "b": b"changed", "c": b"longer"}
    assert len(ranges(environment)) == 2


def test_broken_connection_is_continued(environment: Api, tmp_path: Path) -> None:
    left(environment, model=BIG)
    environment.cuts = [1_000_000, 0, 500_000]
    assert call("artifacts", "--task", "5", "--get", str(tmp_path / "out")).exit_code == 0
    assert files_in(tmp_path / "out") == {"model": BIG}
    starts = [int((found or "bytes=0-")[6:-1]) for found in ranges(environment)]
    assert len(starts) == 4
    assert starts == sorted(starts)
    assert 1_000_000 - 300_000 < starts[1] == starts[2] <= 1_000_000
    etags = [headers.get("If-Range") for call, _, headers, _ in environment.requests[-3:]]
    assert etags == [f'"{hashlib.sha256(BIG).hexdigest()}"'] * 3


def partial_of(target: Path, content: bytes) -> Path:
    item: Any = entry(target.name, content)
    return Download(item, target.parent, (target.name,)).partial


def test_partial_file_is_continued(environment: Api, tmp_path: Path) -> None:
    left(environment, model=BIG)
    part = partial_of(tmp_path / "model", BIG)
    assert part.name.endswith(".part")
    part.write_bytes(BIG[:777])
    assert call("artifacts", "--task", "5", "--get", str(tmp_path)).exit_code == 0
    assert files_in(tmp_path) == {"model": BIG}
    assert ranges(environment) == ["bytes=777-"]


def test_complete_partial_file_needs_no_request(environment: Api, tmp_path: Path) -> None:
    left(environment, model=BIG)
    partial_of(tmp_path / "model", BIG).write_bytes(BIG)
    assert call("artifacts", "--task", "5", "--get", str(tmp_path)).exit_code == 0
    assert files_in(tmp_path) == {"model": BIG}
    assert ranges(environment) == []


@pytest.mark.parametrize("wrong", [b"x" * 777, b"x" * len(BIG), b"x" * (len(BIG) + 1)])
def test_wrong_partial_file_is_replaced(environment: Api, tmp_path: Path, wrong: bytes) -> None:
    left(environment, model=BIG)
    partial_of(tmp_path / "model", BIG).write_bytes(wrong)
    assert call("artifacts", "--task", "5", "--get", str(tmp_path)).exit_code == 0
    assert files_in(tmp_path) == {"model": BIG}
    assert ranges(environment)[-1] is None


def test_whole_file_in_response_to_a_range_is_taken(environment: Api, tmp_path: Path) -> None:
    environment.answer(f"GET {TASK}", a_page(entry("model", BIG)))
    environment.answer(f"GET {TASK}/model", BIG)  # regardless of the Range
    partial_of(tmp_path / "model", BIG).write_bytes(b"x" * 777)
    assert call("artifacts", "--task", "5", "--get", str(tmp_path)).exit_code == 0
    assert files_in(tmp_path) == {"model": BIG}


def test_wrong_part_in_response_to_a_range_is_refused(
    environment: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellrun.api.transport.PATIENCE_TRIES", 0)
    environment.answer(f"GET {TASK}", a_page(entry("model", BIG[:999])))
    other = "bytes 5-998/999"
    environment.answer(f"GET {TASK}/model", BIG[5:999], status=206, Content_Range=other)
    partial_of(tmp_path / "model", BIG[:999]).write_bytes(BIG[:77])
    done = call("artifacts", "--task", "5", "--get", str(tmp_path))
    assert (done.exit_code, "another part" in done.stderr) == (2, True)
    assert list(files_in(tmp_path).values()) == [BIG[:77]]


def test_damaged_artifact_is_not_written_and_the_others_are(
    environment: Api, tmp_path: Path
) -> None:
    left(environment, good=b"good", model=b"right", long=b"short", gone=b"x")
    environment.files |= {f"{TASK}/model": b"wrong", f"{TASK}/long": b"longer"}
    del environment.files[f"{TASK}/gone"]
    done = call("artifacts", "--task", "5", "--get", str(tmp_path / "out"))
    assert done.exit_code == 2
    first, *lines = done.stderr.splitlines()
    assert "3 of 4 files failed" in first
    shown = sorted(line.strip().removeprefix(f"{tmp_path}/out/") for line in lines)
    assert [line.split(":")[0] for line in shown] == ["gone", "long", "model"]
    assert "SHA-256 differs" in shown[1]
    assert "SHA-256 differs" in shown[2]
    assert files_in(tmp_path / "out") == {"good": b"good"}
    environment.files |= {f"{TASK}/model": b"right", f"{TASK}/long": b"short", f"{TASK}/gone": b"x"}
    assert call("artifacts", "--task", "5", "--get", str(tmp_path / "out")).exit_code == 0


def test_artifacts_kept_elsewhere_are_named(environment: Api, tmp_path: Path) -> None:
    far = entry("far", b"x", uri="s3://bucket/far")
    environment.answer(f"GET {TASK}", a_page(entry("near", b"y"), far))
    environment.files[f"{TASK}/near"] = b"y"
    done = call("artifacts", "--task", "5", "--get", str(tmp_path / "out"))
    assert (done.exit_code, "s3://bucket/far" in done.stderr) == (2, True)
    assert files_in(tmp_path / "out") == {"near": b"y"}
    tasks_of_job(environment, a_task(id=5))
    assert "s3://bucket/far" in call("cp", "7:0:far", "-").stderr


def test_file_that_cannot_be_written_is_named(environment: Api, tmp_path: Path) -> None:
    left(environment, model=b"x")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model").mkdir()
    done = call("artifacts", "--task", "5", "--get", str(tmp_path / "out"))
    assert (done.exit_code, "is a folder" in done.stderr) == (2, True)
    (tmp_path / "file").write_text("")
    done = call("artifacts", "--task", "5", "--get", str(tmp_path / "file" / "below"))
    assert (done.exit_code, "Not a directory" in done.stderr) == (2, True)


def test_interrupted_download_is_continued_by_the_same_command(
    environment: Api, tmp_path: Path
) -> None:
    left(environment, model=BIG, other=BIG[::-1])
    environment.cuts = [1_000_000, 1_000_000]
    environment.resume.clear()
    out = tmp_path / "out"
    words = [sys.executable, "-c", RUN, "artifacts", "--task", "5", "--get", str(out)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        while sum(map(len, files_in(out).values())) < 2 * 700_000:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=120)
    environment.resume.set()
    assert (process.returncode, shown) == (130, "interrupted\n")
    parts = files_in(out)
    assert {name.rpartition(".")[2] for name in parts} == {"part"}
    assert call("artifacts", "--task", "5", "--get", str(out)).exit_code == 0
    assert files_in(out) == {"model": BIG, "other": BIG[::-1]}
    assert {f"bytes={len(content)}-" for content in parts.values()} == set(ranges(environment)[2:])


# ----------------------------------------------------------------------------- redirects


def test_redirect_is_followed_without_the_token(environment: Api, tmp_path: Path) -> None:
    store = Api()
    try:
        store.files["/bucket/key"] = BIG
        left(environment, model=BIG)
        environment.files.clear()
        environment.answer(
            f"GET {TASK}/model", b"", status=302, Location=f"{store.url}/bucket/key?signature=s"
        )
        partial_of(tmp_path / "model", BIG).write_bytes(BIG[:777])
        assert call("artifacts", "--task", "5", "--get", str(tmp_path)).exit_code == 0
        assert files_in(tmp_path) == {"model": BIG}
        ((request, query, headers, _),) = store.requests
        assert (request, query) == ("GET /bucket/key", "signature=s")
        assert headers["Range"] == "bytes=777-"
        assert {"Authorization", "If-Range"} & set(headers) == set()
    finally:
        store.close()


@pytest.mark.parametrize(
    ("location", "text"),
    [("file:///etc/passwd", "redirects to file"), (f"{TASK}/model", "[302]")],
)
def test_bad_redirect_is_refused(
    environment: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str, text: str
) -> None:
    monkeypatch.setattr("cellrun.api.transport.PATIENCE_TRIES", 0)
    left(environment, model=BIG)
    environment.files.clear()
    environment.answer(f"GET {TASK}/model", b"", status=302, Location=location)
    done = call("artifacts", "--task", "5", "--get", str(tmp_path / "out"))
    assert (done.exit_code, text in done.stderr) == (2, True)
    assert files_in(tmp_path) == {}


def test_unreachable_store_is_named_instead_of_the_api(
    environment: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellrun.api.transport.PATIENCE_TRIES", 0)
    left(environment, model=BIG)
    environment.files.clear()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        location = f"{url}/bucket/key?signature=secret"
        environment.answer(f"GET {TASK}/model", b"", status=307, Location=location)
        done = call("artifacts", "--task", "5", "--get", str(tmp_path))
    assert done.exit_code == 2
    assert f"no valid response from {url}: connection refused" in done.stderr
    assert "secret" not in done.stderr


def test_refusal_of_the_store_names_its_host_only(environment: Api, tmp_path: Path) -> None:
    store = Api()
    try:
        left(environment, model=BIG)
        environment.files.clear()
        location = f"{store.url}/bucket/key?signature=secret"
        environment.answer(f"GET {TASK}/model", b"", status=307, Location=location)
        store.answer("GET /bucket/key", b"<Error/>", status=403)
        done = call("artifacts", "--task", "5", "--get", str(tmp_path / "out"))
        assert done.exit_code == 2
        assert f"HTTP 403 from {store.url} [403]" in done.stderr
        assert "secret" not in done.stderr
    finally:
        store.close()


# ----------------------------------------------------------------------------- hostile names


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "/etc/evil",
        "a/../../evil",
        "a//b",
        "./a",
        "a/.",
        "",
        "a\\b",
        "a\x1bb",
        "a\nb",
        "..",
    ],
)
def test_unsafe_name_is_refused_before_anything_is_written(
    environment: Api, tmp_path: Path, name: str
) -> None:
    environment.answer(f"GET {TASK}", a_page(entry("good", b"x"), entry(name, b"x")))
    tasks_of_job(environment, a_task(id=5))
    out = str(tmp_path / "out")
    for words in (["artifacts", "--task", "5", "--get", out], ["cp", "7:0:", out]):
        done = call(*words)
        assert (done.exit_code, "not safe as a path" in done.stderr) == (2, True)
        assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    assert call("artifacts", "--task", "5").exit_code == 0, "it is listed, escaped"


@pytest.mark.parametrize("group", ["..", "a/../..", "", "/etc"])
def test_unsafe_group_is_refused(environment: Api, tmp_path: Path, group: str) -> None:
    job_left(environment, (group, 0, {"a": b"x"}))
    done = call("artifacts", "7", "--get", str(tmp_path / "out"))
    assert (done.exit_code, "not safe as a path" in done.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_symbolic_links_are_not_followed(environment: Api, tmp_path: Path) -> None:
    left(environment, link=b"evil", folder__a=b"evil", fresh=b"new")
    outside, out = tmp_path / "outside", tmp_path / "out"
    (outside / "folder").mkdir(parents=True)
    (outside / "file").write_text("precious")
    out.mkdir()
    (out / "link").symlink_to(outside / "file")
    (out / "folder").symlink_to(outside / "folder")
    partial_of(out / "fresh", b"new").symlink_to(outside / "file")
    done = call("artifacts", "--task", "5", "--get", str(out))
    assert (done.exit_code, "3 of 3 files failed" in done.stderr) == (2, True)
    assert files_in(outside) == {"file": b"precious"}
    assert (out / "link").is_symlink()


def test_destination_itself_may_be_a_link_to_a_folder(environment: Api, tmp_path: Path) -> None:
    left(environment, a=b"x")
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    assert call("artifacts", "--task", "5", "--get", str(tmp_path / "out")).exit_code == 0
    assert files_in(tmp_path / "real") == {"a": b"x"}


def test_two_artifacts_for_one_file_are_refused(environment: Api, tmp_path: Path) -> None:
    part = partial_of(Path("a"), b"x").name
    for other in ("a", part):
        environment.answers.clear()
        environment.answer(f"GET {TASK}", a_page(entry("a", b"x"), entry(other, b"y")))
        done = call("artifacts", "--task", "5", "--get", str(tmp_path / "out"))
        assert (done.exit_code, "two artifacts" in done.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_long_names_have_partial_files_too(environment: Api, tmp_path: Path) -> None:
    name = "ü" * 127
    environment.answer(f"GET {TASK}", a_page(entry(name, b"x")))
    environment.files[f"{TASK}/{quote(name)}"] = b"x"
    assert call("artifacts", "--task", "5", "--get", str(tmp_path)).exit_code == 0
    assert files_in(tmp_path) == {name: b"x"}


# ----------------------------------------------------------------------------- cp


def tasks_of_job(api: Api, *tasks: Any) -> None:
    api.answer("GET /api/v1/jobs/7/tasks", a_page(*tasks))


@pytest.fixture
def copied(environment: Api) -> Api:
    """Task 5 is fit.3 of job 7."""
    left(environment, model=b"m", plots__a_png=b"a", plots__deep__b_png=b"b", notes__a_png=b"n")
    tasks_of_job(environment, a_task(id=5, group="fit", index=3))
    return environment


@pytest.mark.parametrize(
    ("sources", "dest", "expected"),
    [
        (["7:fit.3:model"], "new/it", {"new/it": b"m"}),
        (["7:fit/3:model"], "there", {"there/model": b"m"}),
        (["7:3:model"], "new/", {"new/model": b"m"}),
        (["7:3:plots"], "new", {"new/a_png": b"a", "new/deep/b_png": b"b"}),
        (["7:3:plots/"], "there", {"there/plots/a_png": b"a", "there/plots/deep/b_png": b"b"}),
        (["7:3:plots/deep"], "there", {"there/deep/b_png": b"b"}),
        (["7:3:plots/deep/b_png"], "new", {"new": b"b"}),
        (["7:3:plots/*"], "new", {"new/a_png": b"a", "new/deep/b_png": b"b"}),
        (["7:3:m?d*"], "new", {"new/model": b"m"}),
        (["7:3:model", "7:3:plots/a_png"], "new", {"new/model": b"m", "new/a_png": b"a"}),
        (["7:3:model", "7:3:m*"], "new", {"new/model": b"m"}),
        (
            ["7:3:"],
            "new",
            {"model": b"m", "plots/a_png": b"a", "plots/deep/b_png": b"b", "notes/a_png": b"n"},
        ),
    ],
)
def test_cp_writes_files_as_cp_would(
    copied: Api,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sources: list[str],
    dest: str,
    expected: dict[str, bytes],
) -> None:
    if sources == ["7:3:"]:
        expected = {f"new/{name}": content for name, content in expected.items()}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    done = call("cp", *sources, dest)
    assert done.exit_code == 0, done.stderr
    assert files_in(tmp_path) == expected
    query = next(query for call, query, *_ in copied.requests if call.endswith("/jobs/7/tasks"))
    assert "index=3" in query
    assert ("group=fit" in query) == ("fit" in sources[0])


def test_cp_of_an_attempt(environment: Api, tmp_path: Path) -> None:
    left(environment, ATTEMPT, a__b=b"x")
    assert call("cp", f"{UID}:a/b", str(tmp_path / "it")).exit_code == 0
    assert (tmp_path / "it").read_bytes() == b"x"


def test_cp_to_standard_output(environment: Api) -> None:
    left(environment, model=BIG, plots__a=b"a", plots__b=b"b")
    tasks_of_job(environment, a_task(id=5))
    assert call("cp", "7:0:model", "-").stdout_bytes == BIG
    done = call("cp", "7:0:plots", "-")
    assert (done.exit_code, "2 files are selected" in done.stderr) == (2, True)
    environment.files[f"{TASK}/model"] = BIG[1:] + b"x"
    done = call("cp", "7:0:model", "-")
    assert (done.exit_code, "model was received damaged" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("model", "expected JOB/GROUP.INDEX:NAME"),
        ("7:model", "expected JOB/GROUP.INDEX:NAME"),
        ("x:0:model", "there is no job with the name or guid"),
        ("7:fit:model", "expected JOB/GROUP.INDEX:NAME"),
        ("7:3:none", "no such artifact"),
        ("7:3:mode", "no such artifact"),
        ("7:3:mod*/x", "no such artifact"),
    ],
)
def test_cp_refuses_a_wrong_source(copied: Api, tmp_path: Path, source: str, text: str) -> None:
    copied.answer("GET /api/v1/jobs", a_page())
    done = call("cp", source, str(tmp_path / "it"))
    assert (done.exit_code, text in done.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_cp_needs_one_task(environment: Api, tmp_path: Path) -> None:
    tasks_of_job(environment)
    assert "job 7 has no task fit.9" in call("cp", "7:fit.9:a", str(tmp_path / "it")).stderr
    environment.answers.clear()
    tasks_of_job(environment, a_task(group="a"), a_task(group="b"))
    assert "as in a.0, b.0" in call("cp", "7:0:a", str(tmp_path / "it")).stderr


def test_two_matches_for_one_file_are_refused(copied: Api, tmp_path: Path) -> None:
    done = call("cp", "7:3:plots/a_png", "7:3:notes/a_png", str(tmp_path / "out"))
    assert (done.exit_code, "two artifacts" in done.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_name_with_wildcard_characters_selects_itself() -> None:
    items: list[Any] = [entry(name, b"") for name in ("a[1]", "a1", "b")]
    assert [item["name"] for item, _ in select_artifacts(items, "a[1]")] == ["a[1]"]


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 30, "5.0 GiB")]
)
def test_sizes_have_units(size: int, text: str) -> None:
    assert size_text(size) == text
