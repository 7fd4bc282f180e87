"""Sweeps: what is submitted for a matrix and for the rows of a file."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cellrun.cli import app
from cellrun.errors import BadInput
from cellrun.spec_file import apply_change
from cellrun.sweeps import expand_sweep, read_array_file, read_matrix
from controlplane.spec import parse_job
from tests.unit.client.documents import a_job
from tests.unit.client.stub_server import Api

SHORT = {"name": "train", "image": "busybox", "command": ["train"], "env": {"SEED": "1"}}


def test_matrix_has_all_combinations() -> None:
    assert read_matrix(["LR=0.1,0.2", "BS=32,64"]) == [
        {"LR": "0.1", "BS": "32"},
        {"LR": "0.1", "BS": "64"},
        {"LR": "0.2", "BS": "32"},
        {"LR": "0.2", "BS": "64"},
    ]


@pytest.mark.parametrize("options", [["LR"], ["LR="], ["1=2"], ["LR=1", "LR=2"]])
def test_wrong_matrix_is_refused(options: list[str]) -> None:
    with pytest.raises(BadInput):
        read_matrix(options)


def test_rows_of_a_file_are_read_with_quotes_and_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "params.csv"
    file.write_bytes(b'\xef\xbb\xbfLR,NOTE\r\n0.1,"a, b"\r\n\r\n0.2,\r\n')
    assert read_array_file(str(file)) == [
        {"LR": "0.1", "NOTE": "a, b"},
        {"LR": "0.2", "NOTE": ""},
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("LR\n", "at least one"),
        ("LR,BS\n1\n", "row 1 has 1 values for 2 names"),
        ("LR,LR\n1,2\n", "occurs twice"),
        ("L R\n1\n", "'L R' is not a name"),
        ('LR\n"1\n', "not a CSV file"),
    ],
)
def test_wrong_file_is_refused(tmp_path: Path, content: str, expected: str) -> None:
    file = tmp_path / "params.csv"
    file.write_text(content)
    with pytest.raises(BadInput, match=expected):
        read_array_file(str(file))
    with pytest.raises(BadInput, match="no such file"):
        read_array_file(str(tmp_path / "other.csv"))


@pytest.mark.parametrize(
    "spec",
    [
        SHORT,
        {"name": "train", "groups": [{**SHORT, "name": "fit"}]},
    ],
)
def test_each_combination_is_a_group_that_fails_alone(spec: dict[str, Any]) -> None:
    job = parse_job(expand_sweep(spec, read_matrix(["LR=0.1,0.2"])))
    assert [group.name for group in job.groups] == ["lr-0.1", "lr-0.2"]
    assert [group.env for group in job.groups] == [
        {"SEED": "1", "LR": "0.1"},
        {"SEED": "1", "LR": "0.2"},
    ]
    assert all(group.command == ["train"] for group in job.groups)
    assert (job.tolerated_failures(), job.minimum()) == (2, 2)


def test_limits_of_the_job_are_kept() -> None:
    job = expand_sweep({**SHORT, "max_task_failures": 0}, read_matrix(["LR=1,2"]))
    assert job["max_task_failures"] == 0
    assert "min_available" not in job


def test_values_that_are_no_names_number_the_groups() -> None:
    for options in (["PATH=/a,/b"], ["X=a,A"], [f"X={'a' * 70},b"]):
        job = expand_sweep(SHORT, read_matrix(options))
        assert [group["name"] for group in job["groups"]] == ["main-0", "main-1"]


def test_several_groups_and_too_many_combinations_are_refused() -> None:
    groups = [{"name": "a"}, {"name": "b"}]
    with pytest.raises(BadInput, match="one group"):
        expand_sweep({"name": "x", "groups": groups}, read_matrix(["LR=1,2"]))
    many = ",".join(map(str, range(1001)))
    with pytest.raises(BadInput, match="1001 combinations"):
        expand_sweep(SHORT, read_matrix([f"LR={many}"]))


def test_submit_expands_the_file_after_its_changes(environment: Api, tmp_path: Path) -> None:
    environment.answer("POST /api/v1/jobs", a_job(), 201)
    words = ["submit", "-", "--matrix", "LR=0.1,0.2", "--set", "env.SEED=7"]
    result = CliRunner().invoke(app, words, input="name: x\nimage: busybox")
    assert result.exit_code == 0, result.stderr
    sent = environment.requests[0][3]
    assert [group["env"] for group in sent["groups"]] == [
        {"SEED": "7", "LR": "0.1"},
        {"SEED": "7", "LR": "0.2"},
    ]
    both = CliRunner().invoke(app, [*words, "--array-file", "x.csv"], input="name: x")
    assert (both.exit_code, "not together" in both.stderr) == (2, True)


@pytest.mark.parametrize("text", ["0.1", '"0.1"', "'0.1'"])
def test_value_below_env_is_a_text_without_quotes(text: str) -> None:
    spec: dict[str, Any] = {}
    apply_change(spec, f"env.LR={text}")
    apply_change(spec, "labels.on=true")
    apply_change(spec, "replicas=3")
    assert spec == {"env": {"LR": "0.1"}, "labels": {"on": "true"}, "replicas": 3}
