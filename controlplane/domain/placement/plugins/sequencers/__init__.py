"""Sequencers: the order of rows within a band."""

from collections.abc import Mapping
from types import MappingProxyType

from controlplane.domain.placement.model.interfaces import Sequencer
from controlplane.domain.placement.plugins.sequencers.by_job import Fifo, Lifo
from controlplane.domain.placement.plugins.sequencers.shares import Drf, FairProjects, FairShare

BUILT_IN: Mapping[str, type[Sequencer]] = MappingProxyType(
    {
        "fifo": Fifo,
        "lifo": Lifo,
        "drf": Drf,
        "fair_share": FairShare,
        "fair_projects": FairProjects,
    }
)
