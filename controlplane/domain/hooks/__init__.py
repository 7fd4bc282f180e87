"""The kinds of jobs, each a hook in a file of its own."""

from collections.abc import Mapping
from types import MappingProxyType

from controlplane.domain.hooks.batch import BatchHook
from controlplane.domain.hooks.inference import InferenceHook
from controlplane.domain.hooks.interactive import InteractiveHook
from controlplane.domain.hooks.interface import Hook

BUILT_IN: Mapping[str, type[Hook]] = MappingProxyType(
    {"batch": BatchHook, "inference": InferenceHook, "interactive": InteractiveHook}
)
