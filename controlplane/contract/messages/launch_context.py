"""The launch context of attempts, which a cell fetches before it runs them.

It contains secrets and the last checkpoint. It is not sent through the broker and not stored in the
cell's journal: the cell fetches it from web by a signed request, sealed with its own key
(`keys.SEAL`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controlplane.contract.codec import Document

MAX_PLUGIN_STATE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Registry(Document):
    """Credentials for the registry of an image."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class LaunchContext(Document):
    """The launch context of one attempt.

    `missing`: secrets of the task that are not set. `unusable`: secrets of the wrong format: a
    `registry_secret` without a login. `secrets`: values by name, base64.
    `output_base`: the address below which only this attempt keeps its outputs and checkpoint.
    `checkpoint`: the address of the newest checkpoint of earlier attempts, with its manifest.
    `plugin_state`: the newest that an earlier attempt reported since the last user failure. `gang`:
    of gangs, see `contract.messages.gang`.
    """

    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    missing: tuple[str, ...] = ()
    unusable: tuple[str, ...] = ()
    registry: Registry | None = None
    output_base: str | None = None
    checkpoint: Mapping[str, Any] | None = None
    plugin_state: Mapping[str, Any] | None = None
    gang: Mapping[str, Any] | None = field(default=None, repr=False)
