"""Jobs from files: JSON and YAML, changed by --set, with errors that name file and place."""

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from cellrun.errors import BadInput
from cellrun.spec_file import apply_change, parse_spec, read_spec


def test_yaml_and_json_are_equivalent(tmp_path: Path) -> None:
    yaml, json = tmp_path / "job.yaml", tmp_path / "job.json"
    yaml.write_text("name: x\ncallback: {on: job}\nreplicas: 2\n")
    json.write_text('{"name": "x", "callback": {"on": "job"}, "replicas": 2}')
    expected = {"name": "x", "callback": {"on": "job"}, "replicas": 2}
    assert read_spec(str(yaml)) == read_spec(str(json)) == expected


def test_a_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"name: x")))
    assert read_spec("-", ["replicas=3"]) == {"name": "x", "replicas": 3}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("replicas=4", {"replicas": 4}),
        ("name=4x", {"name": "4x"}),
        ("annotation=a=b", {"annotation": "a=b"}),
        ("annotation=", {"annotation": None}),
        ("retries.failure=1", {"retries": {"failure": 1}}),
        ("resources={cpu: 0.5}", {"resources": {"cpu": 0.5}}),
    ],
)
def test_set_changes_one_value(change: str, expected: dict[str, Any]) -> None:
    spec: dict[str, Any] = {}
    apply_change(spec, change)
    assert spec == expected


def test_set_changes_items_of_lists() -> None:
    spec = {"groups": [{"name": "a"}, {"name": "b"}]}
    apply_change(spec, "groups.1.replicas=2")
    assert spec["groups"][1] == {"name": "b", "replicas": 2}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("replicas", "expected NAME=VALUE"),
        ("=4", "expected NAME=VALUE"),
        ("groups.7.name=x", "not a position from 0 to 0"),
        ("groups.a.name=x", "not a position"),
        ("name.first=x", "a plain value has no fields"),
        ("name.first.second=x", "a plain value has no fields"),
        ("env={a", "--set"),
    ],
)
def test_invalid_change_error_has_the_reason(change: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        apply_change({"name": "x", "groups": [{"name": "a"}]}, change)


@pytest.mark.parametrize("text", ["- a\n- b", "[1]", "7", "", "name: [", '{"name": }', "a: *b"])
def test_file_without_a_mapping_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadInput, match=r"^job\.yaml: "):
        parse_spec(text, "job.yaml")


def test_unreadable_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none\.yaml: no such file or directory"):
        read_spec(str(tmp_path / "none.yaml"))
    (tmp_path / "latin.yaml").write_bytes(b"name: \xff")
    with pytest.raises(BadInput, match="not UTF-8"):
        read_spec(str(tmp_path / "latin.yaml"))
