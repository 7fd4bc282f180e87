"""The forgeries of the simulation are what they claim: each fails for its own fault."""

from typing import Any

import pytest

from controlplane.contract.codec import MalformedMessage
from controlplane.contract.messages.orders import read_order
from controlplane.contract.messages.reports import read_message
from tests.simulation.hostile import UNTYPED_BODIES, WRONG_BODIES, WRONG_ORDERS


@pytest.mark.parametrize("body", UNTYPED_BODIES, ids=str)
def test_untyped_body_is_no_message(body: dict[str, Any]) -> None:
    for read in (read_message, read_order):
        with pytest.raises(MalformedMessage, match="unknown message type"):
            read(body)


@pytest.mark.parametrize(
    ("read", "body"),
    [
        *((read_message, body) for body in WRONG_BODIES),
        *((read_order, body) for body in WRONG_ORDERS),
    ],
    ids=str,
)
def test_body_of_a_known_type_fails_for_a_field(read: Any, body: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage) as refusal:
        read(body)
    assert "unknown message type" not in str(refusal.value)
