"""Mistakes about what must not run twice at the same time, which the simulation must find."""

from tests.mutations.catalogue import Mutation

_D, _G = "controlplane/domain/", "workers/guard/"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "guard-fences-nothing",
        f"{_G}decisions.py",
        "        return now >= self._is_due_at(uid, item) and not self._has_ended(uid)",
        "        return False",
        "an exclusive container outlives its cell's lease",
        needs="exclusive+cut_off",
        within=240,
    ),
    Mutation(
        "guard-has-a-lease-and-a-half",
        f"{_G}watchlist.py",
        "        return self.deadline - self.lease_seconds * MARGIN",
        "        return self.deadline + self.lease_seconds",
        "a lease counts for longer than the control plane waits",
        needs="deaf+cut_off",
        within=80,
    ),
    Mutation(
        "guard-stops-and-never-kills",
        f"{_G}decisions.py",
        "            self._engine.kill(uid)",
        "            self._engine.stop(uid, item.stop_signal)",
        "a task that ignores signals outlives the lease",
        needs="deaf+cut_off",
        within=80,
    ),
    Mutation(
        "guard-is-not-informed",
        f"{_D}jobs/launch.py",
        '    launch["exclusive"] = exclusive',
        '    launch["exclusive"] = False',
        "no guard watches what the submitter wanted to be exclusive",
        needs="exclusive+cut_off",
        within=240,
    ),
    Mutation(
        "an-end-of-the-guard-s-making-is-the-program-s",
        "workers/agent/exclusive.py",
        "        return status.boot_id == self._link.boot_id and record.uid in status.fenced",
        "        return False",
        "a program pays for the end that its cell's guard made",
        needs="exclusive+cut_off",
    ),
    Mutation(
        "loss-gives-an-exclusive-attempt-up-at-once",
        f"{_D}convergence/lost_cells.py",
        "    if facts.exclusive is Exclusive.NO or _is_releasable(attempt, now):",
        "    if facts.exclusive is not Exclusive.STRICT or _is_releasable(attempt, now):",
        "an exclusive task is tried again before its guard must have ended it",
        needs="exclusive+cut_off",
    ),
    Mutation(
        "a-start-needs-no-permit",
        "workers/drivers/memory.py",
        "            is_refused = life is None and launch.permit() is not Permit.YES",
        "            is_refused = False",
        "a start that came late happens without a lease",
        scenario="tests/conformance/test_life.py::test_nothing_is_created_without_a_permit[memory]",
    ),
)
