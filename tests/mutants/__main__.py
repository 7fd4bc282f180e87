"""`python -m tests.mutants`: the score of each module of the domain, and the survivors as diffs."""

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.chosen import counting_mutants, draw, other_paths, rule_paths
from tests.mutants.running import Outcome, Tried, copied_tree, score_of, try_mutants


def main() -> int:
    """Try the mutants of the rules, of the modules named, or some of all others."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--module", action="append", help="only modules whose path contains this")
    parser.add_argument("--elsewhere", type=int, help="so many of the modules that hold no rules")
    parser.add_argument("--seed", type=int, help="which of them (drawn and printed if not given)")
    parser.add_argument("--at-once", type=int, help="processes (default: one for each core)")
    options = parser.parse_args()
    with copied_tree() as tree:
        mutants = counting_mutants(
            tree, _paths(tree, options.module, options.elsewhere is not None)
        )
        if options.elsewhere is not None:
            seed = random.randrange(1_000_000) if options.seed is None else options.seed
            mutants = draw(mutants, options.elsewhere, seed)
            print(f"--elsewhere {options.elsewhere} --seed {seed}", flush=True)
        print(f"{len(mutants)} mutants", flush=True)
        report(try_mutants(tree, mutants, at_once=options.at_once, on_result=_show))
    return 0


def _paths(tree: Path, parts: Sequence[str] | None, elsewhere: bool) -> list[str]:
    paths = other_paths(tree) if elsewhere else rule_paths(tree)
    if not parts:
        return paths
    paths = sorted({*paths, *other_paths(tree)})
    return [path for path in paths if any(part in path for part in parts)]


def _show(tried: Tried) -> None:
    if tried.outcome is Outcome.SURVIVED:
        print(tried.mutant, flush=True)


def report(tried: Sequence[Tried]) -> None:
    """Print a line for each module, and one for all."""
    print(f"\n{'module':48} {'killed':>7} {'lived':>6} {'score':>7}")
    for path in sorted({one.mutant.path for one in tried}):
        _line(path, [one for one in tried if one.mutant.path == path])
    _line("all", tried)
    stillborn = sum(one.outcome is Outcome.STILLBORN for one in tried)
    timeouts = sum(one.outcome is Outcome.TIMEOUT for one in tried)
    print(f"{stillborn} could not be imported and do not count; {timeouts} never ended")


def _line(name: str, tried: Sequence[Tried]) -> None:
    score = score_of(tried)
    print(f"{name:48} {score.killed:7} {score.survived:6} {score.percent:6.1f} %")


if __name__ == "__main__":
    sys.exit(main())
