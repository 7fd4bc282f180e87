"""DRF: the owner with the least dominant share of the pool first (dominant resource fairness).

Shares are updated during the pass; jobs of one owner are FIFO.
"""

from collections.abc import Iterator

from controlplane.domain.placement.model.interfaces import Queue, Turn
from controlplane.domain.placement.plugins.sequencers.shares import turns_by_share


class Drf:
    """Sequencer for equal dominant shares."""

    uses_shares = True

    def turns(self, queue: Queue) -> Iterator[Turn]:
        """Return turns, least share first."""
        return turns_by_share(queue, lambda owner: 1.0)
