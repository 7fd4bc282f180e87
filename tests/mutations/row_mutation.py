"""A one-line mistake in what a row of docs/scenarios.md obliges to, and what finds it."""

from dataclasses import dataclass

from tests.mutations.catalogue import Mutation


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMutation(Mutation):
    """A mistake in what `row` obliges to; `test`, a file and a function of tests/scenarios, fails
    for it.
    """

    row: str
    test: str


DOMAIN, COMMANDS, QUERIES, SPEC = (
    f"controlplane/{name}/" for name in ("domain", "commands", "queries", "spec")
)
TABLE, ROLLUP, REPORTS = (
    f"{DOMAIN}state/transitions.py",
    f"{DOMAIN}state/rollup.py",
    f"{DOMAIN}cells/reports.py",
)


def of_row(
    row: str, module: str, *listed: tuple[str, str, str, str, str, str]
) -> tuple[RowMutation, ...]:
    """The mistakes of one row: (name, file, old, new, what it breaks, test without `test_`)."""
    return tuple(
        RowMutation(name, file, old, new, breaks, row=row, test=f"{module}.py::test_{test}")
        for name, file, old, new, breaks, test in listed
    )
