"""A hook: jobs of kind `licensed` run where the licence is valid, and know its server.

It writes to the log which licences are in use; a real one would put that into a queue.
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
    """As batch, with a licence for each attempt."""

    def prepare(self, terms: GroupTerms) -> GroupTerms:
        """Add the server's address, and the label of cells where the licence is valid."""
        if "LICENCE_SERVER" in terms.env:
            raise Refusal("env", "LICENCE_SERVER is set by kind licensed")
        return replace(
            terms,
            env={**terms.env, "LICENCE_SERVER": SERVER},
            constraints=(*terms.constraints, WHERE),
        )

    def on_placed(self, event: LifeEvent) -> EndOfJob | None:
        """End a job that takes more cells than licences are sold to a job."""
        if event.index >= MOST:
            return EndOfJob(f"a job has {MOST} licences at most, for tasks 0 to {MOST - 1}")
        return None

    def on_started(self, event: LifeEvent) -> None:
        """Log the attempt. It may be called again for the same attempt, which has the same uid."""
        log.info("attempt %s on cell %s takes a licence", event.attempt, event.cell)

    def on_end(self, end: AttemptEnd) -> Event:
        """Note it; the end means what it means for batch."""
        log.info("attempt %s gives its licence back", end.attempt)
        return end.event
