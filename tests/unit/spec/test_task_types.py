"""What a group of another package's task type may request: all but what needs a process."""

import pytest

from controlplane.spec import InvalidSpec, parse_job

PLAIN = {"name": "outside", "task_type": "http-job"}


def test_runner_task_needs_neither_image_nor_command() -> None:
    [group] = parse_job({**PLAIN, "timeout_seconds": 5, "secrets": []}).groups
    assert (group.task_type, group.image, group.command) == ("http-job", None, [])


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"ports": ["http"]}, "ports", "is not supported for task_type http-job"),
        ({"idle_timeout_seconds": 5}, "idle_timeout_seconds", "is not supported for task_type"),
        ({"health_check": {"command": ["true"]}}, "health_check", "is not supported for task_type"),
        ({"exclusive": True}, "exclusive", "is not supported for task_type http-job"),
    ],
)
def test_options_that_need_a_process_are_refused_for_a_runner(
    fields: dict[str, object], field: str, words: str
) -> None:
    with pytest.raises(InvalidSpec) as refused:
        parse_job({**PLAIN, **fields})
    assert words in {fault.field: fault.detail for fault in refused.value.faults}[field]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("user", "nobody"),
        ("max_pids", 5),
        ("image", "x"),
        ("entrypoint", ["x"]),
        ("pull_policy", "never"),
        ("registry_secret", "x"),
        ("network", "none"),
        ("shm", "1Mi"),
        ("read_only", True),
        ("mounts", [{"source": "/a", "target": "/b"}]),
        ("tmpfs", [{"path": "/b"}]),
        ("privileged", True),
        ("capabilities", ["NET_RAW"]),
    ],
)
def test_container_options_are_refused_for_a_process(field: str, value: object) -> None:
    plain = {"name": "a", "task_type": "process", "command": ["true"]}
    with pytest.raises(InvalidSpec) as refused:
        parse_job({**plain, field: value})
    found = {fault.field: fault.detail for fault in refused.value.faults}
    assert found == {field: "is not supported for task_type process"}
