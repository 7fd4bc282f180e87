"""What a group of another package's task type may ask for: all but what needs a process."""

import pytest

from controlplane.spec import InvalidSpec, parse_job

PLAIN = {"name": "outside", "task_type": "http-job"}


def test_neither_an_image_nor_a_command_is_needed() -> None:
    [group] = parse_job({**PLAIN, "timeout_seconds": 5, "secrets": []}).groups
    assert (group.task_type, group.image, group.command) == ("http-job", None, [])


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"ports": ["http"]}, "ports", "means nothing for task_type http-job"),
        ({"idle_timeout_seconds": 5}, "idle_timeout_seconds", "means nothing for task_type"),
        ({"health_check": {"command": ["true"]}}, "health_check", "means nothing for task_type"),
        ({"exclusive": True}, "exclusive", "cannot be promised for task_type http-job"),
    ],
)
def test_what_needs_a_process_on_the_cell_is_refused_by_name(
    fields: dict[str, object], field: str, words: str
) -> None:
    with pytest.raises(InvalidSpec) as refused:
        parse_job({**PLAIN, **fields})
    assert words in {fault.field: fault.detail for fault in refused.value.faults}[field]
