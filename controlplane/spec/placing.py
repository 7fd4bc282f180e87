"""Placement constraints and tags of a job, and their rules."""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    WithJsonSchema,
    model_validator,
)

from controlplane.spec.faults import Finding, Place
from controlplane.spec.fields import NAME_PATTERN, LabelName, LabelValue, Model, Name
from controlplane.spec.parts import MAX_NAMED, RESOURCE_NAME, Resources

MAX_CONSTRAINTS = 32
MAX_VALUES = 64
MAX_TAGS = 32
MAX_NODE_LABELS = 64

PROTECTED_PREFIX = "node/"
"""Labels of cells that begin with it are set by operators only."""

Op = Literal["eq", "ne", "in", "exists", "not_exists", "gt", "ge", "lt", "le"]
OPS: tuple[Op, ...] = ("eq", "ne", "in", "exists", "not_exists", "gt", "ge", "lt", "le")
WITHOUT_VALUE: frozenset[Op] = frozenset({"exists", "not_exists"})
NUMERIC: frozenset[Op] = frozenset({"gt", "ge", "lt", "le"})

_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?", re.ASCII)

_RESOURCE_NAME = re.compile(RESOURCE_NAME.strip("^$"), re.ASCII)
_NAMES_IN_JOBS = {"cpu_millis": "cpu", "memory_mib": "memory", "disk_mib": "disk"}


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


AnyOp = Annotated[
    Op,
    BeforeValidator(_lower),
    WithJsonSchema({"type": "string", "enum": [*OPS, *(op.upper() for op in OPS)]}),
]


class Constraint(Model):
    """A comparison with a label of the cell; exists and not_exists take no value, in takes several.

    gt, ge, lt and le compare numbers. Not `required`: cells that meet it are preferred.
    """

    key: LabelName
    op: AnyOp
    values: list[LabelValue] = Field(default=[], max_length=MAX_VALUES)
    required: bool = True


OWN_TAGS = "*"
"""The only fixed tag of a cell that chooses its tags."""

CellTag = Annotated[str, Field(pattern=rf"^(\*|{NAME_PATTERN}\??)$", max_length=63)]
Constraints = Annotated[list[Constraint], Field(max_length=MAX_CONSTRAINTS)]
PlacementTags = Annotated[list[Name], Field(max_length=MAX_TAGS)]


class NodeLabels(RootModel[dict[LabelName, LabelValue]]):
    """Labels of a cell that operators set; their names begin with node/."""

    model_config = ConfigDict(strict=True, frozen=True)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.root) > MAX_NODE_LABELS:
            raise ValueError(f"must have at most {MAX_NODE_LABELS} labels, not {len(self.root)}")
        for name in self.root:
            if not name.startswith(PROTECTED_PREFIX):
                raise ValueError(f"{name}: must begin with {PROTECTED_PREFIX}")
        return self


class FixedTags(RootModel[list[CellTag]]):
    """The tags that operators fix of a cell: `a` is required, `b?` optional; only *: its own."""

    model_config = ConfigDict(strict=True, frozen=True)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.root) > MAX_TAGS:
            raise ValueError(f"must have at most {MAX_TAGS} tags, not {len(self.root)}")
        if OWN_TAGS in self.root and len(self.root) > 1:
            raise ValueError(f"{OWN_TAGS} must be the only element: the cell chooses its tags")
        names = [tag.removesuffix("?") for tag in self.root]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name} is named twice")
        return self


def split_tags(text: str) -> list[str]:
    """Return the tags in a text with commas."""
    return [tag for piece in text.split(",") if (tag := piece.strip())]


def is_number(text: str) -> bool:
    """Return whether `text` is a number: an optional sign, digits, an optional fraction."""
    return _NUMBER.fullmatch(text) is not None


def check_constraints(constraints: Sequence[Constraint]) -> Iterator[Finding]:
    """Yield the faults between the fields of each constraint."""
    for position, item in enumerate(constraints):
        place: Place = ("constraints", position, "values")
        if item.op in WITHOUT_VALUE:
            if item.values:
                yield place, f"must be empty for {item.op}"
        elif item.op == "in":
            if not item.values:
                yield place, "must have at least one value for in"
        elif len(item.values) != 1:
            yield place, f"must have exactly one value for {item.op}, not {len(item.values)}"
        elif item.op in NUMERIC and not is_number(item.values[0]):
            yield (*place, 0), f"must be a number like 64 or -0.5 for {item.op}, in quotes"


def check_resources(resources: Resources) -> Iterator[Finding]:
    """Yield the faults of the names of named resources."""
    names = list(resources.named())
    for name in names:
        if name in _NAMES_IN_JOBS:
            yield ("resources", name), f"is a reserved name: use {_NAMES_IN_JOBS[name]}"
        elif not _RESOURCE_NAME.fullmatch(name):
            yield ("resources", name), f"the name must match {RESOURCE_NAME}"
    if len(names) > MAX_NAMED:
        yield ("resources",), f"must have at most {MAX_NAMED} named resources, not {len(names)}"


def check_tags(tags: Sequence[str]) -> Iterator[Finding]:
    """Yield a fault for each duplicate tag."""
    for position, tag in enumerate(tags):
        if tag in tags[:position]:
            yield ("placement_tags", position), f"{tag} is named twice"
