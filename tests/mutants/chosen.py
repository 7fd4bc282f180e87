"""Which mutants are tried: all of the rules, and a requested number of the rest, drawn."""

import random
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.making import DOMAIN, Mutant, known_enums, mutants_of, paths_in

RULES = (
    "controlplane/contract/states.py",
    f"{DOMAIN}/state/task_changes.py",
    f"{DOMAIN}/state/gangs.py",
    f"{DOMAIN}/state/backoff.py",
    f"{DOMAIN}/state/rollup.py",
    f"{DOMAIN}/state/states.py",
    f"{DOMAIN}/state/transitions.py",
)
"""With all of convergence, the modules whose every mutant is tried."""
CONVERGENCE = f"{DOMAIN}/convergence"


def rule_paths(tree: Path) -> list[str]:
    """The modules that hold rules."""
    return sorted([*RULES, *paths_in(tree, below=CONVERGENCE)])


def other_paths(tree: Path) -> list[str]:
    """The rest of the domain."""
    rules = rule_paths(tree)
    return [path for path in paths_in(tree) if path not in rules]


def counting_mutants(tree: Path, paths: Sequence[str]) -> list[Mutant]:
    """All mutants of these modules but those that are known to change nothing."""
    known = known_enums(tree)
    return [
        mutant
        for path in paths
        for mutant in mutants_of(tree, path, known)
        if not any(entry.fits(mutant) for entry in EQUIVALENT)
    ]


def draw(mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """`count` of them; the same ones for the same seed."""
    return random.Random(seed).sample(list(mutants), min(count, len(mutants)))
