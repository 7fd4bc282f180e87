"""Placement constraints on labels of cells, and placement tags.

Sources: Iris (required and preferred constraints on attributes), Diego (a cell's required and
optional placement tags).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any

from controlplane.spec.placing import is_number


class Operator(StrEnum):
    """Comparison operators for labels. EXISTS and NOT_EXISTS take no value; GT to LE, a number."""

    EQ = "eq"
    NE = "ne"
    IN = "in"
    EXISTS = "exists"
    NOT_EXISTS = "not_exists"
    GT = "gt"
    GE = "ge"
    LT = "lt"
    LE = "le"


@dataclass(frozen=True, slots=True)
class Constraint:
    """A comparison with a cell's label. Not `required`: cells that meet it are preferred."""

    key: str
    op: Operator
    values: tuple[str, ...] = ()
    required: bool = True

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> "Constraint":
        """Return the constraint from its stored form (`as_dict`)."""
        operator = Operator(document["op"])
        return cls(document["key"], operator, tuple(document["values"]), document["required"])

    def as_dict(self) -> dict[str, Any]:
        """Return the stored form: {key, op, values, required}."""
        return {
            "key": self.key,
            "op": self.op.value,
            "values": list(self.values),
            "required": self.required,
        }

    def __str__(self) -> str:
        """Return the constraint as text: "zone in (a, b)", "memory_gb >= 64", "ssd exists"."""
        match self.op:
            case Operator.EXISTS:
                return f"{self.key} exists"
            case Operator.NOT_EXISTS:
                return f"{self.key} does not exist"
            case Operator.IN:
                return f"{self.key} in ({', '.join(self.values)})"
        return f"{self.key} {_SIGNS[self.op]} {self.values[0]}"


_SIGNS = {
    Operator.EQ: "=",
    Operator.NE: "!=",
    Operator.GT: ">",
    Operator.GE: ">=",
    Operator.LT: "<",
    Operator.LE: "<=",
}


def is_met(constraint: Constraint, labels: Mapping[str, str]) -> bool:
    """Return whether a cell with `labels` meets the constraint; a missing label equals no value.

    Numbers are compared as decimals. `queries.jobs.submission` repeats the rule in SQL.
    """
    label = labels.get(constraint.key)
    match constraint.op:
        case Operator.EXISTS:
            return label is not None
        case Operator.NOT_EXISTS:
            return label is None
        case Operator.NE:
            return label != constraint.values[0]
        case Operator.EQ | Operator.IN:
            return label in constraint.values
    if label is None or not is_number(label):
        return False
    value, limit = Decimal(label), Decimal(constraint.values[0])
    match constraint.op:
        case Operator.GT:
            return value > limit
        case Operator.GE:
            return value >= limit
        case Operator.LT:
            return value < limit
    return value <= limit


@dataclass(frozen=True, slots=True)
class Tags:
    """Placement tags of a cell: `required` ones a task must name, `optional` ones it may name."""

    required: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()

    @classmethod
    def read(cls, tags: Sequence[str]) -> "Tags":
        """Parse tags as a cell registers them: "a" is required, "b?" optional."""
        return cls(
            frozenset(tag for tag in tags if not tag.endswith("?")),
            frozenset(tag[:-1] for tag in tags if tag.endswith("?")),
        )

    def admit(self, task_tags: Sequence[str]) -> bool:
        """Return whether a task with these tags may run on the cell.

        As in Diego, the task must name all required tags of the cell, and only tags of the cell.
        """
        requested = frozenset(task_tags)
        return self.required <= requested <= self.required | self.optional
