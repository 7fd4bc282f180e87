"""`sinfo`: list pools as partitions, with their cells as nodes."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_commands.columns import fit
from slurm_commands.options import Option, OptionTable, Refused, split_list
from slurm_commands.programs.entry import run
from slurm_commands.programs.server import with_session

OPTIONS = OptionTable(
    (
        Option("noheader", "h", takes_value=False),
        Option("format", "o"),
        Option("partition", "p"),
    )
)
USUAL_FORMAT = "%9P %.5a %.10l %.6D %.6t %N"
DEFAULT_POOL = "default"
_FIELD = re.compile(r"%(?P<right>\.?)(?P<width>\d*)(?P<letter>[A-Za-z])")
_TITLES = {
    "P": "PARTITION", "R": "PARTITION", "a": "AVAIL", "l": "TIMELIMIT", "D": "NODES",
    "t": "STATE", "T": "STATE", "N": "NODELIST",
}  # fmt: skip
_OF_A_CELL = frozenset("DtTN")
_SHORT = {"down": "down", "drained": "drain", "idle": "idle", "mixed": "mix"}


def state_of_cell(cell: Mapping[str, Any]) -> str:
    """Return Slurm's state of a node for a cell."""
    if cell["state"] == "LOST":
        return "down"
    if cell["state"] != "READY":
        return "drained"
    return "idle" if cell["free"].get("cpu") == cell["capacity"].get("cpu") else "mixed"


def show_partitions(words: Sequence[str]) -> None:
    """Print the list of a command line."""
    given, rest = OPTIONS.parse_mixed(words)
    if rest:
        raise Refused(f"{rest[0]!r} is not an option")
    text = given.get("format", USUAL_FORMAT)
    letters = [found["letter"] for found in _FIELD.finditer(text)]
    for letter in letters:
        if letter not in _TITLES:
            raise Refused(f"--format: %{letter} is not supported; use %{' %'.join(_TITLES)}")
    pools, cells = with_session(lambda session: (session.pools(), session.cells()))
    names = split_list(given, "partition")
    wanted = [pool["name"] for pool in pools if not names or pool["name"] in names]
    if "noheader" not in given:
        print(_line(text, _TITLES))
    for pool in wanted:
        states: dict[str, list[str]] = {}
        for cell in cells:
            if cell["pool"] == pool:
                states.setdefault(state_of_cell(cell), []).append(cell["name"])
        if not _OF_A_CELL & set(letters):
            states = {"": []}
        for state, nodes in sorted(states.items() or [("n/a", [])]):
            print(_line(text, _values(pool, state, nodes)))


def _values(pool: str, state: str, nodes: list[str]) -> dict[str, str]:
    return {
        "P": pool + "*" * (pool == DEFAULT_POOL),
        "R": pool,
        "a": "up",
        "l": "infinite",
        "D": str(len(nodes)),
        "t": _SHORT.get(state, state),
        "T": state,
        "N": ",".join(sorted(nodes)),
    }


def _line(text: str, values: Mapping[str, str]) -> str:
    def show(found: re.Match[str]) -> str:
        value = values[found["letter"]]
        if not found["width"]:
            return value
        return fit(value, int(found["width"]), is_left=not found["right"])

    return _FIELD.sub(show, text)


def main() -> None:
    """Run `sinfo`."""
    run("sinfo", show_partitions)
