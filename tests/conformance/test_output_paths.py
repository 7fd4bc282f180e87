"""Outputs with wildcards, whole folders and exact addresses, on every engine."""

from pathlib import Path
from typing import Any

import pytest

from controlplane.contract.messages.task_options import Output
from controlplane.contract.states import FailureKind
from tests.conformance.keeper import Keeper
from tests.conformance.kit import DockerKit, Kit
from tests.conformance.test_artifacts import ran, script
from tests.conformance.test_files import ROOT
from tests.harness.web import Answer, Web
from workers.attempt.events import EndedEvent
from workers.attempt.outcome import EXIT, OUTPUTS

USER = (0, FailureKind.USER, OUTPUTS)


@pytest.fixture
def keeper(web: Web) -> Keeper:
    return Keeper(web)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder of the host to which the cell may write."""
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


@pytest.fixture
def kit(real_kit: Kit, keeper: Keeper, shared: Path) -> Kit:
    """A kit whose cell uses the keeper and `shared`."""
    keeper.serve(real_kit, file_roots=(shared,))
    return real_kit


def end_of(ended: EndedEvent) -> tuple[Any, ...]:
    return ended.exit_code, ended.failure_kind, ended.reason


def files_below(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


# ----------------------------------------------------------------------------- wildcards


def test_matches_are_stored_below_the_name_by_their_relative_paths(
    kit: Kit, keeper: Keeper
) -> None:
    text = (
        f"cd {ROOT}/out; echo a > a.csv; echo b > b.csv; echo no > c.txt; echo no > .d.csv;"
        " mkdir -p runs/1/deep runs/2 full.csv; echo 1 > runs/1/deep/part-1; : > runs/2/part-2;"
        " echo no > runs/2/part-33; echo x > full.csv/.x; ln c.txt e.csv"
    )
    outputs = (
        Output("/out/*.csv", "tables"),
        Output("/out/runs/**/part-?", "parts"),
        Output("/out/runs/[0-9]/d*/", "deep", path_prefix="/out"),
        Output("/out/runs/2/part-[!3]", "all", path_prefix="/"),
    )
    ended = ran(kit, text, *outputs)
    assert ended.exit_code == 0, ended
    assert keeper.kept[ended.uid] == {
        "tables/a.csv": b"a\n",
        "tables/b.csv": b"b\n",
        "tables/e.csv": b"no\n",
        "tables/full.csv/.x": b"x\n",
        "parts/1/deep/part-1": b"1\n",
        "parts/2/part-2": b"",
        "deep/runs/1/deep/part-1": b"1\n",
        "all/out/runs/2/part-2": b"",
    }


def test_folder_before_the_wildcard_exists_and_is_writable_by_any_user(
    kit: Kit, keeper: Keeper
) -> None:
    text = f"echo 1 > {ROOT}/left/here/one"
    outputs = (Output("/left/here/*", "all"),)
    launch = kit.launch("sh", "-c", text, outputs=outputs, user="1234:1234")
    kit.driver.start(launch)
    assert kit.events.ended(launch.uid).exit_code == 0
    assert keeper.kept[launch.uid] == {"all/one": b"1\n"}


def test_backslash_makes_a_wildcard_literal(kit: Kit, keeper: Keeper) -> None:
    text = f"cd {ROOT}/out; echo 1 > 'a*'; echo 2 > ab; echo 3 > 'a*b'"
    ended = ran(kit, text, Output(r"/out/a\*", "one"), Output(r"/out/a\**", "more"))
    assert keeper.kept[ended.uid] == {
        "one": b"1\n",
        "more/a*": b"1\n",
        "more/a*b": b"3\n",
    }, ended


def test_pattern_without_a_match_is_a_user_failure(kit: Kit, keeper: Keeper) -> None:
    texts = (
        "true",
        f"echo x > {ROOT}/out/x.txt",
        f"mkdir {ROOT}/out/empty.csv",
        f"ln -s /etc/passwd {ROOT}/out/a.csv",
        f"mkfifo {ROOT}/out/a.csv",
        f"rm -r {ROOT}/out",
        f"rm -r {ROOT}/out; echo x > {ROOT}/out",
    )
    for text in texts:
        ended = ran(kit, text, Output("/out/*.csv", "tables"), user="0")
        assert end_of(ended) == USER, (text, ended)
        assert ended.message is not None
        assert ended.message.startswith("output tables: "), text
        assert "/out" in ended.message
    assert keeper.kept == {}


def test_matches_of_a_failed_task_are_stored_if_the_job_wants_them(
    kit: Kit, keeper: Keeper
) -> None:
    core = Output("/out/core.*", "cores", keep_on_failure=True)
    none = Output("/out/*.none", "none", keep_on_failure=True)
    ended = ran(kit, f"echo x > {ROOT}/out/core.7; exit 3", core, none)
    assert (ended.exit_code, ended.reason) == (3, EXIT)
    assert keeper.kept[ended.uid] == {"cores/core.7": b"x\n"}
    assert ended.usage is not None
    assert ended.usage["outputs_lost"] == ["output none: nothing matches /out/*.none"]


def test_links_lead_to_no_file_outside_of_the_container(
    kit: Kit, keeper: Keeper, tmp_path: Path
) -> None:
    """The program replaces folders of the path, and files, by links to the host."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.csv").write_bytes(b"secret of the host\n")
    texts = (
        f"rm -r {ROOT}/out; ln -s {outside} {ROOT}/out",
        f"cd {ROOT}/out; ln -s {outside} deep; ln -s {outside}/a.csv a.csv",
        f"cd {ROOT}/out; ln -s ../../../../../../../../../..{outside} deep",
    )
    for text in texts:
        for path in ("/out/*.csv", "/out/**/*.csv", "/out/*/", "/out/deep/*"):
            ended = ran(kit, text, Output(path, "tables"), user="0")
            assert end_of(ended) == USER, (text, path, ended)
    assert keeper.kept == {}


def test_linked_folder_of_the_container_before_the_wildcard_is_followed(
    kit: Kit, keeper: Keeper
) -> None:
    text = f"cd {ROOT}/; mkdir data; echo x > data/a.csv; rm -r out; ln -s data out"
    ended = ran(kit, text, Output("/out/*.csv", "tables"), user="0")
    assert ended.exit_code == 0, ended
    assert keeper.kept[ended.uid] == {"tables/a.csv": b"x\n"}


def test_number_of_stored_files_is_limited_before_any_is_stored(kit: Kit, keeper: Keeper) -> None:
    text = f"cd {ROOT}/out; i=0; while [ $i -lt 1001 ]; do : > $i; i=$((i+1)); done"
    for output in (Output("/out/*", "all"), Output("/out", "all")):
        ended = ran(kit, text, output)
        assert end_of(ended) == USER, ended
        assert ended.message is not None
        assert "more than 1000 files" in ended.message
    assert keeper.puts() == []


def test_only_matches_count_toward_the_limit_of_bytes_of_all_outputs(
    kit: Kit, keeper: Keeper
) -> None:
    keeper.serve(kit, max_files_bytes=1_000_000)
    text = f"cd {ROOT}/out; head -c 800000 /dev/zero > scratch; echo 1 > a.csv; echo 2 > b.txt"
    outputs = (Output("/out/*.csv", "csv"), Output("/out/*.txt", "txt"))
    ended = ran(kit, text, *outputs)
    assert ended.exit_code == 0, ended
    assert keeper.kept[ended.uid] == {"csv/a.csv": b"1\n", "txt/b.txt": b"2\n"}
    text = text.replace("800000", "2000000")
    ended = ran(kit, text, *outputs)
    assert end_of(ended) == USER, ended


# ----------------------------------------------------------------------------- folders


def test_folder_is_stored_with_nested_files_and_without_empty_folders(
    kit: Kit, keeper: Keeper
) -> None:
    text = (
        f"cd {ROOT}/out; mkdir -p plots/a/b/c plots/none empty; echo 1 > plots/a/b/c/1;"
        " echo 2 > plots/.2; : > plots/3"
    )
    ended = ran(kit, text, Output("/out/plots", "plots"), Output("/out/empty/", "empty"))
    assert ended.exit_code == 0, ended
    assert keeper.kept[ended.uid] == {
        "plots/a/b/c/1": b"1\n",
        "plots/.2": b"2\n",
        "plots/3": b"",
    }


def test_path_with_a_slash_at_its_end_is_a_folder(kit: Kit, keeper: Keeper) -> None:
    ended = ran(kit, f"echo x > {ROOT}/out/plots", Output("/out/plots/", "plots"))
    assert end_of(ended) == USER, ended
    assert keeper.kept == {}


# ----------------------------------------------------------------------------- addresses


def test_file_is_written_to_exactly_its_address(kit: Kit, keeper: Keeper, shared: Path) -> None:
    url = f"file://{shared}/new%20folder/{{index}}/final.bin"
    outputs = (Output("/out/model", "model", url=url), Output("/out/other", "other"))
    text = f"echo x > {ROOT}/out/model; echo y > {ROOT}/out/other"
    ended = ran(kit, text, *outputs)
    assert ended.outputs is not None, ended
    assert files_below(shared) == {"new folder/0/final.bin": b"x\n"}
    assert keeper.kept[ended.uid] == {"other": b"y\n"}
    entries = {item["name"]: item for item in ended.outputs}
    assert entries["model"]["uri"] == url.replace("{index}", "0")
    assert entries["model"]["size"] == 2
    assert entries["other"]["uri"].startswith("/api/")


def test_folder_and_matches_are_written_below_their_address(
    kit: Kit, keeper: Keeper, shared: Path
) -> None:
    text = (
        f"cd {ROOT}/out; mkdir -p plots/deep; echo 1 > 'plots/a b'; echo 2 > plots/deep/2;"
        " echo 3 > 3.csv"
    )
    outputs = (
        Output("/out/plots", "plots", url=f"file://{shared}/run"),
        Output("/out/*.csv", "csv", url=f"file://{shared}/run/"),
        Output("/out/*.csv", "again", url=f"file://{shared}/again", path_prefix="/"),
    )
    ended = ran(kit, text, *outputs)
    assert ended.exit_code == 0, ended
    assert files_below(shared) == {
        "run/a b": b"1\n",
        "run/deep/2": b"2\n",
        "run/3.csv": b"3\n",
        "again/out/3.csv": b"3\n",
    }
    assert ended.outputs is not None
    assert {item["name"]: item["uri"] for item in ended.outputs} == {
        "plots/a b": f"file://{shared}/run/a%20b",
        "plots/deep/2": f"file://{shared}/run/deep/2",
        "csv/3.csv": f"file://{shared}/run/3.csv",
        "again/out/3.csv": f"file://{shared}/again/out/3.csv",
    }
    assert keeper.puts() == []


def test_next_attempt_overwrites_the_address(kit: Kit, shared: Path) -> None:
    output = Output("/out/model", "model", url=f"file://{shared}/model")
    for text in ("first", "second, and longer", "3"):
        ended = ran(kit, f"echo {text} > {ROOT}/out/model", output)
        assert ended.exit_code == 0, ended
        assert files_below(shared) == {"model": f"{text}\n".encode()}


def test_address_is_untouched_if_another_output_fails(
    kit: Kit, keeper: Keeper, shared: Path
) -> None:
    url = f"file://{shared}/model"
    outputs = (Output("/out/model", "model", url=url), Output("/out/none", "none"))
    ended = ran(kit, f"echo x > {ROOT}/out/model", *outputs)
    assert end_of(ended) == USER, ended
    keeper.before = lambda request: Answer(413, b'{"detail": "too large"}')
    outputs = (Output("/out/model", "model", url=url), Output("/out/more", "more"))
    ended = ran(kit, f"echo x > {ROOT}/out/model; echo y > {ROOT}/out/more", *outputs)
    assert end_of(ended) == USER, ended
    assert list(shared.iterdir()) == []


def test_address_that_the_cell_does_not_allow_is_a_user_failure(kit: Kit, shared: Path) -> None:
    (shared / "folder").mkdir()
    for url in (
        "file:///tmp/model",
        f"file://{shared}/../model",
        f"file://{shared}/folder",
        "s3://bucket/model",
        "memory://bucket/model",
        "http://127.0.0.1/model",
    ):
        ended = ran(kit, f"echo x > {ROOT}/out/model", Output("/out/model", "model", url=url))
        assert end_of(ended) == USER, (url, ended)
    assert files_below(shared) == {}


def test_two_outputs_with_the_same_address_are_a_user_failure(kit: Kit, shared: Path) -> None:
    text = f"cd {ROOT}/out; mkdir a b; echo 1 > a/x; echo 2 > b/x"
    outputs = [Output(f"/out/{name}", name, url=f"file://{shared}/run") for name in "ab"]
    ended = ran(kit, text, *outputs)
    assert end_of(ended) == USER, ended
    assert ended.message is not None
    assert "address of another output" in ended.message


def test_address_precedes_the_output_base_and_is_kept_on_failure(
    kit: Kit, keeper: Keeper, shared: Path
) -> None:
    log = Output("/out/log", "log", keep_on_failure=True, url=f"file://{shared}/logs/log")
    trace = Output("/out/trace", "trace", keep_on_failure=True)
    launch = script(kit, f"cd {ROOT}/out; echo x > log; echo y > trace; exit 3", log, trace)
    keeper.brief(launch.uid, output_base=f"file://{shared}/base")
    kit.driver.start(launch)
    ended = kit.events.ended(launch.uid)
    assert (ended.exit_code, ended.reason) == (3, EXIT)
    assert files_below(shared) == {"logs/log": b"x\n", "base/trace": b"y\n"}


@pytest.mark.engine
def test_matches_of_a_read_only_container_are_stored(docker_kit: DockerKit, keeper: Keeper) -> None:
    keeper.serve(docker_kit)
    text = "mkdir /out/a; echo x > /out/a/1; echo y > /out/2"
    ended = ran(docker_kit, text, Output("/out/**/[12]", "all"), read_only=True)
    assert ended.exit_code == 0, ended
    assert keeper.kept[ended.uid] == {"all/a/1": b"x\n", "all/2": b"y\n"}
