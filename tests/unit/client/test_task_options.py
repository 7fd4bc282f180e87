"""What a job requires of cells, from the command line and back to the screen."""

from typing import Any

import pytest

from cellrun.errors import BadInput
from cellrun.task_options import (
    describe_concurrency,
    read_concurrency,
    read_constraint,
    read_resource,
    show_constraint,
)
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


def test_concurrency_is_parsed_as_key_and_limit() -> None:
    assert read_concurrency("customer-42=2") == {"key": "customer-42", "limit": 2}
    # A key may contain the sign.
    assert read_concurrency("a=b=3") == {"key": "a=b", "limit": 3}
    for text in ("customer-42", "=2", "customer-42=", "customer-42=two", "customer-42=-1"):
        with pytest.raises(BadInput, match="expected KEY=LIMIT"):
            read_concurrency(text)


def test_concurrency_rule_is_described_in_words() -> None:
    assert (
        describe_concurrency({"key": "k", "limit": 1})
        == "concurrency key k, at most 1 task on cells"
    )
    rule = {"key": "k", "limit": 2, "starts": {"count": 5, "per_seconds": 60}}
    text = "concurrency key k, at most 2 tasks on cells, at most 5 starts in 60 s"
    assert describe_concurrency(rule) == text
