"""Hostile messages: what a program without a key, or with a stolen one, can push to any queue.

No message here may have an effect. Forgeries repeat real envelopes with one field replaced, send
JSON that no component writes, or carry a valid MAC around a body of the wrong type.
"""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from controlplane.contract.wire import broker, envelope, keys, queues
from tests.simulation.machines import Machine
from tests.simulation.world import World

# One fault pushes so many messages.
MOST_AT_ONCE = 12

_WRONG_MACS: tuple[Any, ...] = (
    "é",
    "",
    "0" * 64,
    "F" * 64,
    "é" * 32,
    "\ud800" * 64,
    "0" * 63 + "\u0660",
    None,
    7,
    ["0" * 64],
)
_WRONG_FIELDS: tuple[tuple[str, Any], ...] = (
    ("v", "1"),
    ("v", True),
    ("v", 10**400),
    ("cell", None),
    ("cell", "\x00"),
    ("cell", "\udfff"),
    ("cell", "x" * 10_000),
    ("cell", {"cell-0": 1}),
    ("inc", "é"),
    ("inc", 0),
    ("seq", -1),
    ("seq", 2**63),
    ("seq", 1.5),
    ("payload", {"type": "heartbeat"}),
    ("payload", "[" * 100_000),
    ("payload", "\ud800"),
)
_NO_ENVELOPES: tuple[str, ...] = (
    "",
    "null",
    "NaN",
    "[]",
    '"text"',
    "{" * 1_000,
    "[" * 100_000,
    "\ud800",
    "1" * 5_000,
    '{"probe": 0}',
    '{"probe": 99}',
    '{"probe": true}',
    '{"probe": "0"}',
    '{"probe"',
    '{"v": 1, "v": 1}',
)
# Signed with the key of a real cell, as after a break-out; none is a message.
UNTYPED_BODIES: tuple[dict[str, Any], ...] = (
    {},
    {"type": 7},
    {"type": "\ud800"},
    {"type": "order"},
    {"kind": "heartbeat", "held": []},
)
# Each has a known type, and lacks what this type must have.
WRONG_BODIES: tuple[dict[str, Any], ...] = (
    {"type": "heartbeat", "held": "x"},
    {"type": "heartbeat", "held": [{"uid": 1}]},
    {"type": "heartbeat", "held": [], "clock": "ahead"},
    {"type": "reports", "after": "0", "reports": []},
    {"type": "reports", "after": 0, "reports": [None]},
    {"type": "reports", "after": 0, "reports": [{"uid": "u", "seq": 1, "state": "LOST"}]},
    {"type": "goodbye"},
    {"type": "goodbye", "expected_seconds": "soon"},
    {"type": "register", "capacity": [1]},
    {"type": "register", "capacity": {"cpu_millis": -1}},
    {"type": "register", "capacity": {}, "inventory": [["u", "nowhere"]]},
)
WRONG_ORDERS: tuple[dict[str, Any], ...] = (
    {"type": "orders", "runs": [None]},
    {"type": "orders", "runs": [{"uid": "u"}], "groups": []},
    {"type": "registered", "accepted": "yes"},
    {"type": "sync", "heartbeat": "1"},
    {"type": "sync"},
)


def push_forgeries(world: World, rng: Random) -> int:
    """Push some forgeries to inbox queues and to the queue of a cell; return how many."""
    forged = [_forge(world, rng) for _ in range(rng.randint(1, MOST_AT_ONCE))]
    world.bus.push_from_cell(forged)
    return len(forged)


def _forge(world: World, rng: Random) -> tuple[str, str]:
    """Make one forgery: a queue and a message for it."""
    machine = rng.choice(world.machines)
    text = rng.choice(_FORGERS)(machine, rng)
    if machine.process is not None and rng.random() < 0.4:
        queue = machine.process.queue
        return queue, broker.task_message(queue, queues.ORDERS_TASK, [text])
    queue = rng.choice(queues.INBOX_QUEUES)
    return queue, broker.plain_message(queue, text)


def _head(machine: Machine) -> dict[str, Any]:
    """Build an envelope that would be a heartbeat of the machine's cell, had it a MAC."""
    incarnation = machine.process.incarnation if machine.process else "0" * 16
    payload = json.dumps({"type": "heartbeat", "held": []})
    head = {"v": envelope.VERSION, "cell": machine.name, "inc": incarnation, "seq": 2**52}
    return {**head, "mac": "0" * 64, "payload": payload}


def _with_wrong_mac(machine: Machine, rng: Random) -> str:
    return json.dumps({**_head(machine), "mac": rng.choice(_WRONG_MACS)})


def _with_wrong_field(machine: Machine, rng: Random) -> str:
    name, value = rng.choice(_WRONG_FIELDS)
    return json.dumps({**_head(machine), name: value})


def _of_unknown_cell(machine: Machine, rng: Random) -> str:
    return json.dumps({**_head(machine), "cell": f"nowhere-{rng.randrange(1000)}"})


def _cut_short(machine: Machine, rng: Random) -> str:
    text = json.dumps(_head(machine))
    return text[: rng.randrange(len(text))]


def _no_envelope(machine: Machine, rng: Random) -> str:
    return rng.choice(_NO_ENVELOPES)


def _with_wrong_body(machine: Machine, rng: Random) -> str:
    direction = rng.choice([keys.TO_CONTROL, keys.TO_CELL])
    typed = WRONG_BODIES if direction == keys.TO_CONTROL else WRONG_ORDERS
    head = _head(machine)
    return envelope.seal(
        keys.mac_key(machine.config.key, direction),
        cell=machine.name,
        incarnation=head["inc"],
        seq=rng.choice([0, 1, 2**52]),
        body=rng.choice([*UNTYPED_BODIES, *typed]),
    )


_FORGERS: tuple[Callable[[Machine, Random], str], ...] = (
    _with_wrong_mac,
    _with_wrong_field,
    _of_unknown_cell,
    _cut_short,
    _no_envelope,
    _with_wrong_body,
)
