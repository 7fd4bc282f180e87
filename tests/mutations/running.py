"""Plants one mistake in a copy of the tree and lets the simulation or a scenario search for it."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import count, islice
from pathlib import Path

from tests.mutations import (
    caching,
    catalogue,
    concurrency,
    contests,
    exclusives,
    families,
    retention,
    schedules,
)
from tests.mutations.catalogue import Mutation
from tests.simulation.contests import CONTESTS, choose_contests
from tests.simulation.extras import choose_extras, has_keys, has_schedules
from tests.simulation.families import choose_families, draw_families
from tests.simulation.faults import draw_mixture

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("controlplane", "workers", "tests")
TIMEOUT_SECONDS = 900

MUTATIONS = (
    *catalogue.MUTATIONS,
    *families.MUTATIONS,
    *exclusives.MUTATIONS,
    *contests.MUTATIONS,
    *retention.MUTATIONS,
    *caching.MUTATIONS,
    *schedules.MUTATIONS,
    *concurrency.MUTATIONS,
)
_SERVERS = ("CELLRUN_HOME", "DATABASE_URL", "CELERY_BROKER_URL")
_FAILED = re.compile(r"^seed (\d+): FAILS", re.MULTILINE)


class Misfit(ValueError):
    """The text that a mutation changes does not stand in its file exactly once."""


def mutate(text: str, mutation: Mutation) -> str:
    """The text of the file with its mistake. Raises Misfit."""
    if text.count(mutation.old) != 1:
        raise Misfit(f"{mutation.name}: its text is {text.count(mutation.old)} times in its file")
    return text.replace(mutation.old, mutation.new)


def seeds_for(mutation: Mutation) -> list[int]:
    """The first seeds that have what the mutation needs."""
    needs = mutation.needs.split("+")
    # Others contend only where a mutation needs it.
    is_contest = any(need in {contest.__name__ for contest in CONTESTS} for need in needs)
    found = (
        seed
        for seed in count(1)
        if bool(choose_contests(seed)) == is_contest and all(_has(seed, need) for need in needs)
    )
    return list(islice(found, mutation.within))


def _has(seed: int, needs: str) -> bool:
    mixture = draw_mixture(seed)
    if needs in ("drop", "duplicate", "delay"):
        return float(getattr(mixture.messages, needs)) >= 0.1
    if needs == "deaf":
        jobs = [job.body for job in draw_families(seed)]
        return any(body.get("exclusive") and "deaf" in str(body["groups"]) for body in jobs)
    if needs == "serial":
        return any(job.body.get("cache", {}).get("serialize") for job in draw_families(seed))
    if needs == "schedules":
        return has_schedules(seed)
    if needs == "keys":
        return has_keys(seed)
    if needs == "own":
        return mixture.is_own and mixture.count > 0
    if not needs or needs in {family.__name__ for family in choose_families(seed)}:
        return True
    if needs in {it.__name__ for it in (*choose_contests(seed), *choose_extras(seed))}:
        return True
    return needs in {kind.__name__ for kind in mixture.kinds} and mixture.count > 0


def first_failing_seed(mutation: Mutation, seeds: Sequence[int]) -> int | None:
    """Simulate `seeds` on a copy with the mistake; the first that fails, None if none does."""
    done = _run_on_copy(mutation, ["tests.simulation", "--stop", *map(str, seeds)])
    found = _FAILED.search(done.stdout)
    if done.returncode not in (0, 1) or (done.returncode == 1 and found is None):
        raise _broken("simulation", done)
    return int(found[1]) if found else None


def is_found_by_scenario(mutation: Mutation) -> bool:
    """Run the scenario of the mutation on a copy with the mistake; return whether it fails."""
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = _run_on_copy(mutation, ["pytest", *options, mutation.scenario])
    # An error of a fixture, or a scenario that is not there, is no finding.
    if done.returncode not in (0, 1) or " error" in done.stdout.splitlines()[-1]:
        raise _broken("scenario", done)
    return done.returncode == 1


def _run_on_copy(mutation: Mutation, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a module with its arguments on a copy of the tree that has the mistake."""
    with tempfile.TemporaryDirectory(prefix="cellrun-mutant-") as folder:
        tree = Path(folder)
        for name in COPIED:
            leave_out = shutil.ignore_patterns("__pycache__", "static", "e2e")
            shutil.copytree(ROOT / name, tree / name, ignore=leave_out)
        shutil.copy(ROOT / "pyproject.toml", tree)
        path = tree / mutation.file
        path.write_text(mutate(path.read_text(), mutation))
        environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
        if mutation.scenario:
            # Servers of its own: its database would have the name of that of the tests around it.
            for name in _SERVERS:
                environment.pop(name, None)
        return subprocess.run(
            [sys.executable, "-m", *command],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )


def _broken(what: str, done: subprocess.CompletedProcess[str]) -> RuntimeError:
    return RuntimeError(f"the {what} broke down:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
