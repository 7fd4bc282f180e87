"""Messages that a service accepts: in one piece within its limit, without markup of the texts."""

import pytest

from controlplane.domain.notifications.messages import MAX_LINE, MAX_LINES, compose
from controlplane.outbox.notifications.child import render
from controlplane.outbox.notifications.schemes import make_plugin

# The longest text of a message by the documentation of each service.
LIMITS = {
    "discord://1234567890/abcdefghijkl": 2_000,
    "tgram://123456789:abcdefg_hijklmnop/12315544/": 4_096,
    f"pover://{'u' * 30}@{'a' * 30}": 1_024,
    "rocket://user:secret@example.org/#general": 5_000,
}


@pytest.mark.parametrize("url", LIMITS)
def test_longest_message_is_within_the_limit_of_the_service(url: str) -> None:
    lines = [f"job {number} <b> & {'x ' * MAX_LINE}"[:MAX_LINE] for number in range(MAX_LINES)]
    message = compose("night", lines, total=70)
    found = render(make_plugin(url), message.title, message.body)
    assert len(found["title"]) + len(found["body"]) <= LIMITS[url]
    assert "job" in found["body"]
    assert "70" in found["title"]


@pytest.mark.parametrize("url", LIMITS)
def test_short_message_is_whole(url: str) -> None:
    found = render(make_plugin(url), "Cellrun: 2 events (night)", "first\nsecond")
    assert "first" in found["body"]
    assert "second" in found["body"]
