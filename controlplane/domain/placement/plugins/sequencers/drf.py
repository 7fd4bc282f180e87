"""DRF: the owner whose dominant share of the pool is least goes first (dominant resource fairness).

Shares are brought up to date as tasks are placed within the pass; an owner's own jobs are FIFO.
"""

from collections.abc import Iterator

from controlplane.domain.placement.model.interfaces import Queue, Turn
from controlplane.domain.placement.plugins.sequencers.shares import turns_by_share


class Drf:
    """Equal dominant shares for all."""

    uses_shares = True

    def turns(self, queue: Queue) -> Iterator[Turn]:
        """Least share first."""
        return turns_by_share(queue, lambda owner: 1.0)
