"""Mistakes about concurrency keys, which the simulation or a test of concurrency must find."""

from tests.mutations.catalogue import Mutation

_USAGE = "controlplane/domain/placement/cycle/key_usage.py"
_ROWS = "controlplane/queries/placement/concurrency.py"
_LOOP = "tests/integration/loop/test_concurrency_keys.py"
_NEEDS = "keys"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "placed-tasks-hold-no-key",
        _USAGE,
        "        self._held[rule.key_id] = self.held(rule) + tasks\n",
        "        self._held[rule.key_id] = self.held(rule)\n",
        "one pass starts more tasks than a key allows",
        needs=_NEEDS,
        within=10,
    ),
    Mutation(
        "ended-tasks-hold-no-key",
        _ROWS,
        "WHERE concurrency_id = ANY(%s) AND released_at IS NULL GROUP BY concurrency_id",
        "WHERE concurrency_id = ANY(%s) AND finished_at IS NULL GROUP BY concurrency_id",
        "a key is free while containers are being stopped",
        scenario=f"{_LOOP}::test_key_is_held_until_the_container_is_gone",
    ),
    Mutation(
        "starts-of-a-pass-are-not-counted",
        _USAGE,
        "            started[seconds] += tasks\n",
        "            started[seconds] += 0\n",
        "one pass starts more tasks than the rate of a key allows",
        needs=_NEEDS,
        within=20,
    ),
    Mutation(
        "earlier-passes-hold-no-key",
        _ROWS,
        "    return tuple(KeyUsage(key, held.get(key, 0), started.get(key, {})) for key in ids)",
        "    return tuple(KeyUsage(key, 0, started.get(key, {})) for key in ids)",
        "a pass does not see the attempts of earlier ones",
        needs=_NEEDS,
        within=10,
    ),
    Mutation(
        "full-key-refuses-nothing",
        "controlplane/domain/jobs/concurrency.py",
        "            if sum(one.open_tasks for one in rest) > room:\n",
        "            if sum(one.open_tasks for one in rest) > room + rule.limit:\n",
        "a job is accepted although its key is full",
        needs=_NEEDS,
        within=20,
    ),
    Mutation(
        "stopped-jobs-are-replaced-again",
        "controlplane/domain/jobs/concurrency.py",
        "                there = [one for one in there if not one.is_ending]\n",
        "                pass\n",
        "a job replaces more jobs than it must",
        scenario=_LOOP,
    ),
    Mutation(
        "keys-are-not-locked",
        "controlplane/commands/placement/limits.py",
        "    lock_keys(rule.key_id for rule in used)\n",
        "",
        "two placements at once exceed the limit of a key",
        scenario=f"{_LOOP}::test_two_concurrent_placements_do_not_exceed_the_limit",
    ),
    Mutation(
        "moved-job-loses-its-key",
        "controlplane/commands/state/shapes.py",
        "concurrency=None if shape.concurrency is None else",
        "concurrency=None if True else",
        "a job that is moved to another band obeys no key",
        scenario=f"{_LOOP}::test_moved_job_keeps_its_key",
    ),
)
