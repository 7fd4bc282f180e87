"""Wildcards in paths of outputs, compared with a POSIX shell."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from controlplane.contract.patterns import split_path

FILES = (
    "a.csv",
    "b.csv",
    ".hidden.csv",
    "a b.csv",
    "A.csv",
    "-.csv",
    "].csv",
    "\\.csv",
    "!.csv",
    "*.csv",
    "ü.csv",
    "run-1/part-1.parquet",
    "run-1/part-22.parquet",
    "run-1/.part-3",
    "run-2/deep/part-4.parquet",
    "run-2/.git/part-5.parquet",
    "run-2/deep/deeper/part-6.parquet",
    "plain/part-7.parquet",
)
PATTERNS = (
    "*",
    "*.csv",
    "?.csv",
    ".*",
    ".h*",
    "[ab].csv",
    "[a-c]*",
    "[!a]*.csv",
    "[^a]*.csv",
    "[]a].csv",
    "[!]a].csv",
    "[a-].csv",
    "[\\]].csv",
    "[[:upper:]].csv",
    "[[:upper:][:digit:]a]*.csv",
    "[[:punct:]].csv",
    "\\*.cs?",
    "\\\\.cs?",
    "a\\ b.cs*",
    "*/part-?.parquet",
    "**",
    "**/*",
    "**/part-?.parquet",
    "**/deep/*.parquet",
    "run-?/**/part-*",
    "run*/",
    "*/",
    "**/d*/",
    "**/**/part-[0-9].parquet",
    "run-2/*/part-4.parquet",
    "run-2/.g*/*",
    "*b*.*v",
    "none*",
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def expanded(tree: Path, pattern: str) -> set[str]:
    """The files that a shell finds, and those below the folders that it finds."""
    script = f"shopt -s globstar nullglob; printf '%s\\0' {pattern}"
    found = subprocess.run(
        ["bash", "-c", script],
        cwd=tree,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
        capture_output=True,
        check=True,
    )
    matches = [name.rstrip("/") for name in found.stdout.decode().split("\0") if name]
    return {name for name in FILES for match in matches if f"{name}/".startswith(f"{match}/")}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_wildcards_match_as_in_a_shell(tree: Path, pattern: str) -> None:
    path, read = split_path(f"/out/{pattern}")
    below = path.removeprefix("/out").strip("/")
    prefix = f"{below}/" if below else ""
    assert read is not None
    found = {
        name for name in FILES if name.startswith(prefix) and read.matches(name[len(prefix) :])
    }
    assert found == expanded(tree, pattern)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/out/model", "/out/model"),
        ("/out/plots/", "/out/plots/"),
        (r"/out/a\*b\[1\]\\", r"/out/a*b[1]" + "\\"),
        ("/out/a]b", "/out/a]b"),
    ],
)
def test_path_without_wildcards_is_literal(path: str, expected: str) -> None:
    assert split_path(path) == (expected, None)


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("/out/*.csv", "/out"),
        ("/*", "/"),
        (r"/o\*t/runs/run-?/x", "/o*t/runs"),
        ("/out/**/x", "/out"),
        ("/out/x**", "/out"),
    ],
)
def test_folder_before_the_first_wildcard_is_fixed(path: str, folder: str) -> None:
    assert split_path(path)[0] == folder


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/out/[ab", "'[' without ']'"),
        ("/out/[]", "'[' without ']'"),
        ("/out/[a/b]", "'[' without ']'"),
        ("/out/a\\", "backslash"),
        ("/out/a\\/b", "backslash"),
        ("/out/[z-a]", "range z-a"),
        ("/out/[[:letter:]]", "class [:letter:]"),
        ("/out/**/**/**/**/**/x", "at most 4"),
    ],
)
def test_malformed_pattern_is_refused_with_its_fault(path: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"must|has") as caught:
        split_path(path)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("*a" * 500 + "b", "a" * 255),
        ("*?" * 500 + "b", "a" * 255),
        ("**/a/" * 4 + "b", "a/" * 2_000 + "c"),
    ],
)
def test_hostile_pattern_takes_no_exponential_time(pattern: str, name: str) -> None:
    _, read = split_path(f"/out/{pattern}")
    assert read is not None
    began = time.process_time()
    assert not read.matches(name)
    assert time.process_time() - began < 1


def test_classes_are_of_ascii() -> None:
    _, pattern = split_path("/a[[:space:]]b")
    assert pattern is not None
    assert all(pattern.matches(f"a{space}b") for space in " \t\n\v\f\r")
    assert not any(pattern.matches(f"a{other}b") for other in "\u00a0\x1c\u2003")
