"""Selectors: choose the cells for tasks of one shape."""

from collections.abc import Mapping
from types import MappingProxyType

from controlplane.domain.placement.model.interfaces import Selector
from controlplane.domain.placement.plugins.selectors.concentrated import ConcentratedSelector
from controlplane.domain.placement.plugins.selectors.dispersed import DispersedSelector
from controlplane.domain.placement.plugins.selectors.round_robin import RoundRobin

BUILT_IN: Mapping[str, type[Selector]] = MappingProxyType(
    {
        "dispersed": DispersedSelector,
        "concentrated": ConcentratedSelector,
        "round_robin": RoundRobin,
    }
)
