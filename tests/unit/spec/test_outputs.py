"""Wildcards, prefixes and addresses of outputs, and files of standard streams, at submission."""

from typing import Any

import pytest

from controlplane.contract.messages.orders import GroupSpec
from controlplane.contract.messages.task_options import Output
from controlplane.domain.jobs.launch import launch_of
from controlplane.spec import InvalidSpec, parse_job


def job(**group: Any) -> dict[str, Any]:
    return {"name": "a", "image": "i", **group}


def faults(body: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(InvalidSpec) as caught:
        parse_job(body)
    return {fault.field: fault.detail for fault in caught.value.faults}


def test_output_reaches_the_cell_with_its_pattern_prefix_and_address() -> None:
    output = {"path": "/out/runs/*.csv", "path_prefix": "/out", "url": "s3://b/x", "name": "csv"}
    files = {"stdin": "/in/a", "stdout": "/out/1", "stderr": "/out/2"}
    inputs = [{"path": "/in/a", "content": "x"}]
    group = parse_job(job(outputs=[output], inputs=inputs, **files)).groups[0]
    launch, _ = launch_of(group, exclusive=False)
    expected = Output("/out/runs/*.csv", "csv", path_prefix="/out", url="s3://b/x")
    assert [Output.read(item) for item in launch["outputs"]] == [expected]
    assert {name: launch[name] for name in files} == files
    sent = {"id": 1, "job_id": 1, "job_name": "a", "group": "main", "replicas": 1, **files}
    assert GroupSpec.read(sent).stdin == "/in/a"


def test_name_of_matches_is_by_default_the_folder_before_the_wildcard() -> None:
    outputs = [{"path": "/out/tables/*.csv"}, {"path": "/out/**/x-[0-9]"}, {"path": r"/a/b\*"}]
    outputs[2]["name"] = "c"
    group = parse_job(job(outputs=outputs)).groups[0]
    assert [item.artifact_name() for item in group.outputs] == ["tables", "out", "c"]


@pytest.mark.parametrize(
    ("output", "field", "text"),
    [
        ({"path": "/*"}, "path", "folder without wildcards"),
        ({"path": "/**/x"}, "path", "folder without wildcards"),
        ({"path": "/out/[a"}, "path", "'[' without ']'"),
        ({"path": "/out/a\\"}, "path", "backslash"),
        ({"path": "/out/[b-a]*"}, "path", "range b-a"),
        ({"path": "/out/../*"}, "path", "'..'"),
        ({"path": r"/out/\.\./x"}, "path", "'..'"),
        ({"path": "/proc/*/x"}, "path", "/proc"),
        ({"path": r"/pro\c/x"}, "path", "/proc"),
        ({"path": "/out/x", "path_prefix": "/out"}, "path_prefix", "with wildcards"),
        ({"path": "/out/*", "path_prefix": "/out/x"}, "path_prefix", "must be /out"),
        ({"path": "/out/*", "path_prefix": "/o"}, "path_prefix", "must be /out"),
        ({"path": "/out/*", "path_prefix": "out"}, "path_prefix", "absolute path"),
        ({"path": r"/out/\*"}, "name", "give it one"),
        ({"path": "/out/x", "url": "http://h/x"}, "url", "s3://bucket/key"),
        ({"path": "/out/x", "url": "https://h/x"}, "url", "s3://bucket/key"),
        ({"path": "/out/x", "url": "/srv/x"}, "url", "must be an address"),
        ({"path": "/out/x", "url": "s3://b/../x"}, "url", "'..'"),
        ({"path": "/out/x", "url": "file:///srv/%2e%2e/x"}, "url", "'..'"),
        ({"path": "/out/x", "url": "file:///srv/%00"}, "url", "NUL"),
        ({"path": "/out/x", "url": "file://host/srv/x"}, "url", "without host"),
        ({"path": "/out/x", "url": "file:///srv/x?y"}, "url", "without host, query"),
        ({"path": "/out/x", "url": "file:///"}, "url", "file:///path"),
        ({"path": "/out/x", "url": "s3://bucket"}, "url", "must have a path"),
        ({"path": "/out/x", "url": "s3:///key"}, "url", "must have a path"),
        ({"path": "/out/x", "url": "s3://[x/y"}, "url", ""),
        ({"path": "/out/x", "url": "s3://id:secret@b/x"}, "url", "password"),
        ({"path": "/out/x", "url": "zip://a::s3://b/x"}, "url", "chained"),
        ({"path": "/out/x", "url": f"s3://b/{'x' * 1024}"}, "url", "at most 1024"),
        ({"path": "/out/x", "url": "s3://b/x/"}, "url", "like a folder's"),
    ],
)
def test_unusable_output_is_refused_at_its_field(
    output: dict[str, Any], field: str, text: str
) -> None:
    found = faults(job(outputs=[output]))
    assert text in found[f"outputs[0].{field}"]


def test_address_of_several_tasks_needs_their_index() -> None:
    outputs = [{"path": "/out/x", "url": "s3://b/x"}]
    assert "{index}" in faults(job(outputs=outputs, replicas=2))["outputs[0].url"]
    outputs = [{"path": "/out/x", "url": "s3://b/{index}/x"}]
    parse_job(job(outputs=outputs, replicas=2))


def test_address_of_a_file_is_that_of_one_output_only() -> None:
    outputs = [
        {"path": "/out/x", "url": "s3://b/x"},
        {"path": "/out/y", "url": "s3://b/x"},
        {"path": "/out/*", "name": "all", "url": "s3://b/x/"},
    ]
    found = faults(job(outputs=outputs))
    assert sorted(found) == ["outputs[1].url", "outputs[2].url"]
    groups = [job(outputs=outputs[:1]) | {"name": name} for name in "ab"]
    found = faults({"name": "a", "groups": groups})
    assert list(found) == ["groups[1].outputs[0].url"]
    folders = [
        {"path": "/out/*.csv", "name": "csv", "url": "s3://b/x"},
        {"path": "/out/*.txt", "name": "txt", "url": "s3://b/x/"},
        {"path": "/out/plots/", "url": "s3://b/x/"},
    ]
    parse_job(job(outputs=folders))


def test_long_outputs_are_refused_before_they_exceed_an_order() -> None:
    outputs = [{"path": f"/out/{n}/{'x' * 900}", "name": f"n{n}"} for n in range(60)]
    assert "long" in faults(job(outputs=outputs))["outputs"]


@pytest.mark.parametrize(
    ("group", "field", "text"),
    [
        ({"stdin": "/in/b"}, "stdin", "one of the inputs"),
        ({"stdin": "/in/a/b"}, "stdin", "one of the inputs"),
        ({"stdin": "in"}, "stdin", "absolute path"),
        ({"stdout": "/out/"}, "stdout", "path of a file"),
        ({"stdout": "/dev/x"}, "stdout", "/dev"),
        ({"stdout": "/out/x", "stderr": "/out/x"}, "stderr", "differ"),
        ({"stdout": "/out/x", "stderr": "/out/x/y"}, "stdout", "/out/x/y needs it as a folder"),
        ({"stdout": "/in/a"}, "stdout", "overlaps /in/a"),
        ({"stderr": "/in"}, "stderr", "overlaps /in/a"),
        ({"stdout": "/m/x", "mounts": [{"source": "/srv", "target": "/m"}]}, "stdout", "/m"),
        ({"stdout": "/t/x", "tmpfs": [{"path": "/t"}]}, "stdout", "/t"),
        ({"stdout": "/s", "secrets": [{"name": "s", "path": "/s"}]}, "stdout", "/s"),
        ({"stdout": "/out"}, "stdout", "must be a file, but /out/result"),
        ({"stdout": "/a/b", "outputs": [{"path": "/a/b/*", "name": "c"}]}, "stdout", "a folder"),
        ({"stdout": "/ckpt", "checkpoint_path": "/ckpt"}, "stdout", "a folder"),
        ({"task_type": "outside", "image": None, "stdin": "/in/a"}, "stdin", "not supported"),
        ({"task_type": "outside", "image": None, "stdout": "/out/x"}, "stdout", "not supported"),
    ],
)
def test_unusable_file_of_a_stream_is_refused(group: dict[str, Any], field: str, text: str) -> None:
    found = faults(job(inputs=[{"path": "/in/a", "content": "x"}], **group))
    assert text in found[field]


def test_streams_may_be_outputs_the_result_and_files_of_a_bundle() -> None:
    groups = [
        {"name": "a", "image": "i", "stdout": "/out/result", "outputs": [{"path": "/out/"}]},
        {
            "name": "b",
            "image": "i",
            "inputs": [{"path": "/in", "from": {"group": "a", "result": True}}],
            "stdin": "/in/0",
            "stderr": "/out/errors",
            "outputs": [{"path": "/out/errors"}],
        },
    ]
    parse_job({"name": "a", "groups": groups})
