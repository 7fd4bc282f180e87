"""A hook: jobs of kind `licensed` run on licensed cells and get the address of the licence server.

It logs the use of licences; a production hook would send it to a queue.
"""

import logging
from dataclasses import replace

from controlplane.domain.hooks.interface import AttemptEnd, EndOfJob, GroupTerms, LifeEvent, Refusal
from controlplane.domain.state.transitions import Event

SERVER = "licences.example:27000"
WHERE = {"key": "licensed", "op": "exists", "values": [], "required": True}
MOST = 2


log = logging.getLogger(__name__)


class Licensed:
    """Hook like that of `batch`, with a licence for each attempt."""

    def prepare(self, terms: GroupTerms) -> GroupTerms:
        """Return the terms with the address of the server and a constraint on licensed cells."""
        if "LICENCE_SERVER" in terms.env:
            raise Refusal("env", "LICENCE_SERVER is set by kind licensed")
        return replace(
            terms,
            env={**terms.env, "LICENCE_SERVER": SERVER},
            constraints=(*terms.constraints, WHERE),
        )

    def on_placed(self, event: LifeEvent) -> EndOfJob | None:
        """End a job that has more tasks than a job may have licences."""
        if event.index >= MOST:
            return EndOfJob(f"a job has {MOST} licences at most, for tasks 0 to {MOST - 1}")
        return None

    def on_started(self, event: LifeEvent) -> None:
        """Log the start. A repeated call has the same uid of the attempt."""
        log.info("attempt %s on cell %s takes a licence", event.attempt, event.cell)

    def on_end(self, end: AttemptEnd) -> Event:
        """Log the end and return the reported event."""
        log.info("attempt %s gives its licence back", end.attempt)
        return end.event
