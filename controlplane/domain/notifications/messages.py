"""The texts of messages, the retry schedule, and the limits of both."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from controlplane.domain.notifications.matching import EndedJob
from controlplane.domain.state.backoff import doubled_seconds

MAX_LINES = 20
"""Events that a message lists; it counts the others."""

MAX_LINE = 300
# Such as @everyone and <!channel>. A word joiner, which is invisible, follows.
_MENTION = re.compile("@(?!sha256:|\u2060)|<(?=!)")
MAX_ADDRESSES = 20
"""Each address may have a thread and a process of the sender, so none waits for another."""

MAX_RULES = 100
MAX_STORED = 10_000
"""Unsent events of a rule that are stored; further ones are only counted."""

SEND_SECONDS = 45.0
"""Time limit of a try, after which its process is killed; it starts slowly on a busy machine."""

CLAIM_SECONDS = 90.0
"""Duration of a claim; longer than any try, so an expired claim is of a process that has died."""

GIVE_UP_AFTER = timedelta(days=1)
FAILING_TRIES = 3
"""Failed tries of a message after which its address has an alert."""

_FIRST_WAIT_SECONDS = 10.0
_LONGEST_WAIT_SECONDS = 900.0


def wait_seconds(tries: int, *, message_id: int) -> float:
    """Return seconds from the end of try `tries` (from 1) to the next: 10, 20, … up to 15 min."""
    return doubled_seconds(_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS, tries, row_id=message_id)


@dataclass(frozen=True, slots=True)
class Message:
    """A message to people."""

    title: str
    body: str


def one_line(text: str) -> str:
    """Return `text` on one line, bounded, without mentions that chat services would act on."""
    line = _MENTION.sub("\\g<0>\u2060", " ".join(text.replace("\0", " ").split()))
    return line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 1]}…"


def line_of_job(job: EndedJob) -> str:
    """Return the line of an ended job."""
    why = f": {job.failure_reason}" if job.failure_reason else ""
    return one_line(f"job {job.job_id} {job.name} of {job.project} ended {job.state.name}{why}")


def compose(rule: str, lines: Sequence[str], *, total: int) -> Message:
    """Return the message of a window: `lines` are its first events, `total` counts all."""
    shown = [one_line(line) for line in lines[:MAX_LINES]]
    noun = "event" if total == 1 else "events"
    if total > len(shown):
        shown.append(f"and {total - len(shown)} more")
    return Message(f"Cellrun: {total} {noun} ({rule})", "\n".join(shown))


def compose_test(address: str) -> Message:
    """Return the message that tests an address."""
    return Message("Cellrun: test", f"This message tests the address {address} of Cellrun.")
