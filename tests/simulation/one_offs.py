"""Clients of one-off tasks, as Diego's: they desire, poll, race for claims, resolve and delete."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any
from uuid import UUID

from django.contrib.auth.models import User

from controlplane.commands.jobs.one_offs import (
    claim_task,
    delete_resolved_task,
    desire_task,
    release_claim,
)
from controlplane.contract.states import TaskState as S
from controlplane.domain.convergence.policy import Policy
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.jobs.submission import TaskGuidTaken
from controlplane.queries.sql import rows
from controlplane.spec.one_off import parse_one_off
from tests.simulation.jobs import Submitted, sleep
from tests.simulation.machines import Surroundings
from tests.simulation.submitters import NAME, killed_after
from tests.simulation.timeline import Killed

CLIENTS = ("client-a", "client-b", "client-c")
CLAIM_SECONDS = Policy().claim_seconds

# Whatever becomes of their cells, nothing is tried again.
_ONCE = frozenset({S.SUCCEEDED, S.FAILED, S.WORKER_FAILED, S.PREEMPTED})


@dataclass(slots=True)
class Win:
    """A claim that a client got. `over_at`: when the client released it or deleted the task."""

    task_id: int
    claim: UUID
    by: str
    at: float
    over_at: float | None = None


@dataclass(slots=True, eq=False)
class Desired:
    """A guid, and what is desired under it, `rounds` times: again when it is gone."""

    guid: str
    body: dict[str, Any]
    expected: frozenset[S]
    result: str | None
    at: float
    rounds: int
    task_ids: list[int] = field(default_factory=list)
    wins: list[Win] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        """Whether all rounds are over."""
        return not self.rounds


class OneOffs:
    """The one-off tasks of one simulation. `wrong`: what no client may ever see."""

    def __init__(
        self,
        around: Surroundings,
        owners: Mapping[str, User],
        rng: Random,
        *,
        url: str | None = None,
    ) -> None:
        self._around = around
        self._owner = owners[NAME]
        self._rng = rng
        self.desired = [_draw(rng, f"one-off-{n}", url) for n in range(rng.randint(1, 3))]
        self.wrong: list[str] = []
        self.do_calls_die = True

    def plan(self) -> None:
        """Plan the requests of the clients."""
        for desired in self.desired:
            self._around.timeline.after(desired.at, partial(self._desire, desired))

    def find(self, guid: str) -> Submitted:
        """The job that a one-off task of that guid is."""
        (desired,) = (item for item in self.desired if item.guid == guid)
        definition = desired.body["definition"]
        group = {"delivery": "at_most_once", **definition, "name": "main", "replicas": 1}
        return Submitted(0.0, {"name": guid, "groups": [group]}, desired.expected)

    def what_is_left(self) -> list[str]:
        """Rounds that are not over, in words."""
        left = [f"one-off {it.guid} is desired {it.rounds} times more" for it in self.desired]
        left = [text for text, it in zip(left, self.desired, strict=True) if not it.is_done]
        found = rows("SELECT guid FROM controlplane_oneoff ORDER BY guid")
        return left + [f"one-off {guid} is there" for (guid,) in found]

    # ------------------------------------------------------------------ inside

    def _later(self, shortest: float, longest: float, action: Any) -> None:
        self._around.timeline.after(self._rng.uniform(shortest, longest), action)

    def _call(self, action: Any) -> bool:
        """Whether the call came to its end; it may have done its work, though."""
        dies = self.do_calls_die and self._rng.random() < 0.1
        try:
            if dies:
                with killed_after(self._rng.randrange(30)):
                    action()
            else:
                action()
        except Killed:
            self._around.note("a client's call dies")
            return False
        return True

    def _desire(self, desired: Desired) -> None:
        """Take the guid; if it is in use, an earlier client that died has it, or the last one."""
        again = partial(self._desire, desired)

        def submit() -> None:
            now = self._around.timeline.datetime()
            task_id = desire_task(
                wanted=parse_one_off(desired.body), body=desired.body, owner=self._owner, now=now
            )
            self._begin(desired, task_id)

        there = _task_of(desired.guid)
        if there is not None and there not in desired.task_ids:
            self._begin(desired, there)
            return
        try:
            is_over = self._call(submit)
        except TaskGuidTaken:
            if there is None:
                self.wrong.append(f"guid {desired.guid} is refused, but no task has it")
            is_over = False
        if not is_over:
            self._later(0.5, 5.0, again)

    def _begin(self, desired: Desired, task_id: int) -> None:
        self._around.note(f"one-off {desired.guid} is task {task_id}")
        desired.task_ids.append(task_id)
        for client in CLIENTS:
            self._later(0.5, 10.0, partial(self._poll, desired, task_id, client))

    def _poll(self, desired: Desired, task_id: int, client: str) -> None:
        """Poll; when the task has completed, claim it, as all other clients do."""
        found = rows(
            """
            SELECT t.state, t.finished_at, a.result FROM controlplane_oneoff o
            JOIN controlplane_task t ON t.id = o.task_id
            LEFT JOIN controlplane_attempt a ON a.uid = t.attempt_uid
            WHERE o.task_id = %s
            """,
            [task_id],
        )
        if not found:
            self._is_gone(desired, task_id)
            return
        ((state, finished_at, result),) = found
        if finished_at is not None:
            self._judge(desired, task_id, S(state), result)
            self._call(partial(self._claim, desired, task_id, client))
        self._later(0.2, 8.0, partial(self._poll, desired, task_id, client))

    def _is_gone(self, desired: Desired, task_id: int) -> None:
        """The first client to see it desires the next round, if there is one."""
        if desired.task_ids[-1] == task_id and desired.rounds:
            desired.rounds -= 1
            if desired.rounds:
                self._desire(desired)

    def _judge(self, desired: Desired, task_id: int, state: S, result: str) -> None:
        if state not in desired.expected:
            self.wrong.append(f"one-off {desired.guid}, task {task_id}, is {state.name}")
        if state is S.SUCCEEDED and desired.result not in (None, result):
            self.wrong.append(f"one-off {desired.guid} SUCCEEDED with result {result!r}")

    def _claim(self, desired: Desired, task_id: int, client: str) -> None:
        timeline = self._around.timeline
        try:
            claim = claim_task(task_id=task_id, by=client, now=timeline.datetime())
        except (Conflict, NotFound):
            return
        self._around.note(f"task {task_id} is RESOLVING by {client}")
        win = Win(task_id, claim, client, timeline.now)
        self._check_won_alone(desired, win)
        desired.wins.append(win)
        match self._rng.choice(["dies", "lets go", "deletes", "deletes", "deletes"]):
            case "lets go":
                self._later(0.5, 20.0, partial(self._let_go, win))
            case "deletes":
                self._later(0.1, 45.0, partial(self._delete, desired, win))

    def _check_won_alone(self, desired: Desired, win: Win) -> None:
        for other in desired.wins:
            if other.task_id != win.task_id or other.over_at is not None:
                continue
            if win.at < other.at + CLAIM_SECONDS:
                self.wrong.append(
                    f"task {win.task_id} is RESOLVING by {other.by} since {other.at:.3f},"
                    f" and by {win.by} at {win.at:.3f}"
                )

    def _let_go(self, win: Win) -> None:
        def let_go() -> None:
            now = self._around.timeline.datetime()
            if release_claim(task_id=win.task_id, claim=win.claim, now=now):
                win.over_at = self._around.timeline.now

        if not self._call(let_go):
            win.over_at = self._around.timeline.now  # perhaps

    def _delete(self, desired: Desired, win: Win) -> None:
        def delete() -> None:
            now = self._around.timeline.datetime()
            with suppress(Conflict, NotFound):
                delete_resolved_task(
                    task_id=win.task_id, claim=win.claim, actor=win.by, why="resolved", now=now
                )
                if any(it.task_id == win.task_id and it.at > win.at for it in desired.wins):
                    self.wrong.append(f"task {win.task_id} is deleted by a claim that is over")
                self._around.note(f"task {win.task_id} is deleted by {win.by}")

        if not self._call(delete):
            self._later(0.1, 3.0, partial(self._delete, desired, win))


def _draw(rng: Random, guid: str, url: str | None) -> Desired:
    result = f"result of {guid}" if rng.random() < 0.7 else None
    words = sleep(rng, 20.0)
    words += ["result", result] if result else ["exit", "3"]
    definition: dict[str, Any] = {
        "image": "simulated:1",
        "command": words,
        "resources": {"cpu": rng.choice([0.1, 0.25]), "memory": "16Mi"},
        "stop_grace_seconds": rng.choice([0.0, 2.0, 10.0]),
    }
    if url is not None and rng.random() < 0.6:
        definition["completion_callback_url"] = url
    expected = _ONCE
    if result and rng.random() < 0.3:
        definition |= {"delivery": "at_least_once", "retries": {"preemption": 100, "system": 100}}
        expected = frozenset({S.SUCCEEDED})
    body = {"guid": guid, "domain": "simulated", "definition": definition}
    at = rng.choice([0.5, rng.uniform(0.5, 40.0)])
    return Desired(guid, body, expected, result, at, rounds=rng.choice([1, 1, 2]))


def _task_of(guid: str) -> int | None:
    found = rows("SELECT task_id FROM controlplane_oneoff WHERE guid = %s", [guid])
    return int(found[0][0]) if found else None
