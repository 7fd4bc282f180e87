"""What a job requires of cells, from the command line and back to the screen."""

from typing import Any

import pytest

from client.errors import BadInput
from client.task_options import read_constraint, read_resource, show_constraint
from controlplane.spec import parse_job


@pytest.mark.parametrize(
    ("text", "op", "values"),
    [
        ("zone=a", "eq", ["a"]),
        ("zone=", "eq", [""]),
        ("zone=a,b", "in", ["a", "b"]),
        ("zone!=a", "ne", ["a"]),
        ("zone>1", "gt", ["1"]),
        ("zone>=1", "ge", ["1"]),
        ("zone<-1.5", "lt", ["-1.5"]),
        ("zone<=1", "le", ["1"]),
        ("zone", "exists", None),
        ("!zone", "not_exists", None),
    ],
)
@pytest.mark.parametrize("required", [True, False])
def test_constraint_text_round_trips(
    text: str, op: str, values: list[str] | None, required: bool
) -> None:
    read = read_constraint(f" {text} ", required=required)
    wanted: dict[str, Any] = {"key": "zone", "op": op, "required": required}
    assert read == ({**wanted, "values": values} if values is not None else wanted)
    assert show_constraint(read) == text + ("" if required else "?")
    job = parse_job({"name": "a", "image": "busybox", "constraints": [read]})
    assert job.constraints[0].op == op


@pytest.mark.parametrize("text", ["", "!", "=a", "a b", "!a=b", "a!b", ">3"])
def test_malformed_constraint_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="expected zone=a"):
        read_constraint(text)


def test_named_resource_is_parsed_as_name_and_number() -> None:
    assert read_resource("licence=2") == ("licence", 2)
    for text in ("licence", "=2", "licence=", "licence=-1", "licence=2.5"):
        with pytest.raises(BadInput, match="expected NAME=NUMBER"):
            read_resource(text)
