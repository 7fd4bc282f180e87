"""Sequencers: the order of rows within a band."""

from collections.abc import Mapping
from types import MappingProxyType

from controlplane.domain.placement.model.interfaces import Sequencer
from controlplane.domain.placement.plugins.sequencers.drf import Drf
from controlplane.domain.placement.plugins.sequencers.fair_share import FairShare
from controlplane.domain.placement.plugins.sequencers.fifo import Fifo
from controlplane.domain.placement.plugins.sequencers.lifo import Lifo

BUILT_IN: Mapping[str, type[Sequencer]] = MappingProxyType(
    {"fifo": Fifo, "lifo": Lifo, "drf": Drf, "fair_share": FairShare}
)
