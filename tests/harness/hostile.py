"""Messages of an enrolled cell with a wrong value in one place."""

import copy
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from controlplane.contract.messages.phases import PhaseChange, PhaseKind
from controlplane.contract.messages.reports import (
    AttemptReport,
    Goodbye,
    Heartbeat,
    HeldAttempt,
    Register,
    Reports,
)
from controlplane.contract.states import FailureKind, Phase, TaskState

UID = str(UUID(int=5))
REPORT = AttemptReport(
    uid=UID,
    seq=7,
    state=TaskState.FAILED,
    phase=Phase.PULLING,
    progress=50,
    container_id="c",
    exit_code=-1,
    failure_kind=FailureKind.SYSTEM,
    reason="engine",
    message="m",
    result="r",
    result_truncated=True,
    usage={"peak": 1},
    addresses={"http": "10.0.0.1:49153"},
    outputs=({"name": "a", "size": 1, "sha256": "0" * 64, "uri": "s3://bucket/a"},),
    plugin_phase="p",
    plugin_state={"k": 1},
    started_at=1.5,
    finished_at=2.5,
    gone=True,
    never_created=True,
    phases=(PhaseChange(1, 1.0, PhaseKind.RUNNER, "text"),),
)
REGISTER = Register(
    {"cpu_millis": 1},
    {"zone": "a"},
    ("t",),
    "default",
    ("docker",),
    ("container",),
    {"v": "1"},
    (HeldAttempt(UID, TaskState.RUNNING),),
)
BODIES = {
    "register": REGISTER.body(),
    "heartbeat": Heartbeat((HeldAttempt(UID, TaskState.RUNNING),), "full", 1.5).body(),
    "reports": Reports(3, (REPORT,)).body(),
    "goodbye": Goodbye(60).body(),
}

WRONG: tuple[Any, ...] = (
    None,
    True,
    -1,
    0.5,
    1 << 31,
    (1 << 63) - 1,
    -(1 << 63),
    10**400,
    1e308,
    float("nan"),
    float("-inf"),
    "",
    "\x00",
    "\ud800",
    "\x1b]52;c;eA==\x07",
    "x" * 70_000,
    [],
    [None],
    [[[[]]]],
    {},
    {"\x00\ud800": "\x00\ud800"},
    {"": {"": {"": []}}},
)
"""Values that JSON of Python can hold and a field may not expect."""


def wrong_values(body: Any) -> Iterator[Any]:
    """Copies of `body` with each value and each key replaced by each wrong one."""
    for path in _paths(body):
        for wrong in WRONG:
            yield _replaced(body, path, wrong)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for key, inner in items:
        yield from _paths(inner, (*path, key))


def _replaced(body: Any, path: tuple[Any, ...], wrong: Any) -> Any:
    changed = copy.deepcopy(body)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = wrong
    return changed
