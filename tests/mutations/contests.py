"""Mistakes in the rights of contending jobs, which the simulation must find."""

from tests.mutations.catalogue import Mutation

_D, _C, _Q = "controlplane/domain/placement/", "controlplane/commands/", "controlplane/queries/"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "made-room-is-anybodys",
        f"{_D}cycle/pass_state.py",
        "                self.place_run(shape, picked, int(self.left[row]), here)\n"
        "            if self.left[row]:\n",
        "                self.place_run(shape, picked, int(self.left[row]), here)\n"
        "            if self.left[row] < 0:\n",
        "a task is evicted, and another one than the nominated task takes its place",
        needs="bands",
        within=60,
    ),
    Mutation(
        "capacity-is-free-at-sigterm",
        f"{_Q}cells/capacity.py",
        "WHERE cell_id = ANY(%s) AND released_at IS NULL GROUP BY cell_id, group_id",
        "WHERE cell_id = ANY(%s) AND finished_at IS NULL GROUP BY cell_id, group_id",
        "what is being stopped runs beside what was placed in its stead",
        needs="bands",
        within=20,
    ),
    Mutation(
        "everybody-is-batch",
        f"{_Q}placement/running_attempts.py",
        "                band=Band(band),",
        "                band=Band.BATCH,",
        "work is evicted for what is no more important",
        needs="bands",
        within=30,
    ),
    Mutation(
        "what-runs-once-is-evicted",
        f"{_Q}placement/running_attempts.py",
        "j.coscheduled, NOT g.at_most_once, a.state = {S.ASSIGNED:d},",
        "j.coscheduled, true, a.state = {S.ASSIGNED:d},",
        "what may begin only once is evicted, and never begins again",
        needs="bands+at_most_once",
        within=30,
    ),
    Mutation(
        "pools-cannot-forbid-preemption",
        "controlplane/ticks/make_room.py",
        "wanting = wants_room(plan) if snapshot.policy.preemption else []",
        "wanting = wants_room(plan)",
        "a pool that wants no preemption has it",
        needs="bands",
        within=60,
    ),
    Mutation(
        "stopping-counts-for-no-quota",
        f"{_Q}placement/quotas.py",
        "    FROM controlplane_attempt WHERE released_at IS NULL GROUP BY group_id",
        "    FROM controlplane_attempt WHERE finished_at IS NULL GROUP BY group_id",
        "more of a user's containers run than the quota allows",
        needs="bands",
        within=60,
    ),
    Mutation(
        "zones-of-gangs-are-forgotten",
        f"{_Q}placement/snapshot.py",
        "            group_by=group_by,\n",
        '            group_by="",\n',
        "a gang is spread over zones",
        needs="grouped",
        within=30,
    ),
    Mutation(
        "preferences-are-required-and-the-reverse",
        f"{_D}model/capacity_matrix.py",
        "if item.required]",
        "if not item.required]",
        "a task runs where its constraints do not hold",
        needs="named",
        within=30,
    ),
    Mutation(
        "cells-are-everybodys",
        f"{_Q}cells/capacity.py",
        "\"c.pool_id = %s AND c.incarnation <> ''\"",
        "\"c.pool_id >= %s AND c.incarnation <> ''\"",
        "jobs run on cells of other pools",
        needs="tokens",
        within=20,
    ),
)
