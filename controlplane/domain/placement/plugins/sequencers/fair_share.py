"""Fair share: as DRF, but shares are in proportion to the owners' weights (of their quotas)."""

from collections.abc import Iterator

from controlplane.domain.placement.model.interfaces import Queue, Turn
from controlplane.domain.placement.plugins.sequencers.shares import turns_by_share


class FairShare:
    """Sequencer for dominant shares in proportion to weights."""

    uses_shares = True

    def turns(self, queue: Queue) -> Iterator[Turn]:
        """Return turns, least share per weight first."""
        return turns_by_share(queue, queue.weight_of)
