"""The kinds of jobs, each a hook in a file of its own."""

from collections.abc import Mapping
from types import MappingProxyType

from controlplane.domain.hooks.batch import Batch
from controlplane.domain.hooks.inference import Inference
from controlplane.domain.hooks.interactive import Interactive
from controlplane.domain.hooks.interface import Hook

BUILT_IN: Mapping[str, type[Hook]] = MappingProxyType(
    {"batch": Batch, "inference": Inference, "interactive": Interactive}
)
