"""Parse options by the rules of getopt_long, as Slurm does, and refuse all others by name.

An option can be abbreviated as long as it is unique, short ones can be joined, and parsing ends at
the first argument that is not an option.
"""

import getopt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

_Parser = Callable[[list[str], str, list[str]], tuple[list[tuple[str, str]], list[str]]]


class Refused(Exception):
    """An option or value is not supported, or is invalid. Nothing was sent."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option under its long name; without `takes_value` it is a flag."""

    name: str
    short: str = ""
    takes_value: bool = True
    aliases: tuple[str, ...] = ()


class OptionTable:
    """The options of one command."""

    def __init__(self, options: Iterable[Option]) -> None:
        self._short = ""
        self._long: list[str] = []
        self._names: dict[str, str] = {}
        for option in options:
            for letter in option.short:
                self._short += letter + ":" * option.takes_value
                self._names[f"-{letter}"] = option.name
            for word in (option.name, *option.aliases):
                self._long.append(word + "=" * option.takes_value)
                self._names[f"--{word}"] = option.name

    def parse(self, words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
        """Return options by long name, the last of each, and the words after them. Raise Refused.

        A flag has an empty value.
        """
        return self._named(getopt.getopt, words)

    def parse_mixed(self, words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
        """Parse options also behind arguments, as all commands but sbatch and srun do."""
        return self._named(getopt.gnu_getopt, words)

    def _named(self, parser: _Parser, words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
        try:
            found, rest = parser(list(words), self._short, self._long)
        except getopt.GetoptError as fault:
            raise Refused(_refusal(fault)) from None
        return {self._names[name]: value for name, value in found}, rest


def _refusal(fault: getopt.GetoptError) -> str:
    name = f"--{fault.opt}" if len(fault.opt) > 1 else f"-{fault.opt}"
    if "not recognized" in fault.msg:
        return f"{name} is not supported (docs/slurm.md lists the options)"
    if "requires argument" in fault.msg:
        return f"{name} needs a value"
    if "must not have an argument" in fault.msg:
        return f"{name} takes no value"
    if "not a unique prefix" in fault.msg:
        return f"{name} is an abbreviation of several options"
    return f"{name}: {fault.msg}"


def split_list(values: Mapping[str, str], name: str) -> list[str]:
    """Return the parts of a value, separated by commas; none if the option is absent."""
    return [part.strip() for part in values.get(name, "").split(",") if part.strip()]
