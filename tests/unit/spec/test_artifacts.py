"""Files that a job declares: outputs, checkpoints, outputs of other groups."""

from typing import Any

import pytest

from controlplane.contract.artifacts import is_name, path_of, prefix_of
from controlplane.domain.jobs.launch import launch_of
from controlplane.spec import InvalidSpec, parse_job


def job(*wanted: dict[str, Any], outputs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    inputs = [{"path": f"/in/{n}", "from": item} for n, item in enumerate(wanted)]
    return {
        "name": "a",
        "groups": [
            {"name": "fit", "image": "i", "outputs": outputs or [{"path": "/out/model"}]},
            {"name": "read", "image": "i", "inputs": inputs},
        ],
    }


def faults(body: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(InvalidSpec) as caught:
        parse_job(body)
    return {fault.field: fault.detail for fault in caught.value.faults}


def test_output_of_another_group_is_an_input_and_a_dependency() -> None:
    spec = parse_job(job({"group": "fit", "output": "model"}))
    reader = spec.groups[1]
    assert [item.group for item in reader.dependencies()] == ["fit"]
    launch, _ = launch_of(reader, exclusive=False)
    assert launch["inputs"] == [{"path": "/in/0", "from_group": "fit", "output": "model"}]


@pytest.mark.parametrize(
    ("wanted", "field", "text"),
    [
        ({"group": "fit"}, "groups[1].inputs[0].from", "either result or output"),
        (
            {"group": "fit", "result": True, "output": "model"},
            "groups[1].inputs[0].from",
            "either result or output",
        ),
        ({"group": "fit", "output": "other"}, "groups[1].inputs[0].from.output", "has no output"),
        ({"group": "none", "output": "model"}, "groups[1].inputs[0].from.group", "not a group"),
    ],
)
def test_input_from_a_missing_output_is_refused(
    wanted: dict[str, Any], field: str, text: str
) -> None:
    found = faults(job(wanted))
    assert text in found[field]


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ([{"path": "/a/x"}, {"path": "/b/x"}], "named twice"),
        ([{"path": "/a", "name": "_checkpoint.tar"}], "a name of Cellrun's own files"),
        ([{"path": "/a/_checkpoint.tar"}], "a name of Cellrun's own files"),
        ([{"path": "/a", "name": "x"}, {"path": "/b", "name": "x/y"}], "lies in another"),
        ([{"path": "/a", "name": "x/y"}, {"path": "/b", "name": "x"}], "lies in another"),
        ([{"path": "/a b"}, {"path": "/out/a b"}], "give it one"),
    ],
)
def test_output_names_must_be_distinct_and_not_reserved(
    outputs: list[dict[str, Any]], text: str
) -> None:
    assert any(text in detail for detail in faults(job(outputs=outputs)).values())


@pytest.mark.parametrize(
    "name", ["", "/a", "a/", "a//b", ".", "a/..", "../a", "a\\b", "a\0b", "a\nb", "x" * 256]
)
def test_unsafe_artifact_name_is_refused(name: str) -> None:
    assert not is_name(name)


@pytest.mark.parametrize("name", ["a", "a/b", ".hidden", "a b", "ü", "..a", "a..", "%2e%2e"])
def test_safe_artifact_name_is_accepted(name: str) -> None:
    assert is_name(name)
    assert path_of("u", name).startswith("/api/v1/attempts/u/artifacts/")


def test_attempt_prefixes_are_unique_and_spread_over_shards() -> None:
    made = [
        prefix_of(domain="d", project="p", job=1, task=2, attempt=f"uid-{n}") for n in range(5_000)
    ]
    assert len(set(made)) == 5_000
    shards = {item.partition("/")[0] for item in made}
    assert all(len(shard) == 2 for shard in shards)
    assert len(shards) > 36 * 36 * 0.9


def test_unsafe_parts_of_a_prefix_are_escaped() -> None:
    odd = prefix_of(domain="..", project="a/b", job=1, task=2, attempt="u")
    assert odd.split("/")[1:] == ["%2E.", "a%2Fb", "1", "2", "u"]
