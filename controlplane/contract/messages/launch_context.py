"""The launch context of attempts, which a cell fetches before it runs them.

It contains secrets and the last checkpoint, so it is neither sent through the broker nor stored in
the cell's journal. The response to the cell's signed request is sealed with the cell's key
(`keys.SEAL`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controlplane.contract.codec import Document
from controlplane.contract.images import DOCKER_HUB

MAX_PLUGIN_STATE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Registry(Document):
    """Credentials for the registry `server` (host[:port]), which no other registry receives."""

    username: str
    password: str = field(repr=False)
    server: str = DOCKER_HUB


@dataclass(frozen=True, slots=True)
class LaunchContext(Document):
    """The launch context of one attempt.

    `secrets`: values by name, base64. `missing`: names of secrets that are not set. `unusable`:
    names of secrets in the wrong format, such as a `registry_secret` without a login.
    `output_base`: URL prefix of the outputs and the checkpoint of this attempt only. `checkpoint`:
    URL and manifest of the newest checkpoint of an earlier attempt. `plugin_state`: the newest that
    an earlier attempt reported since the last user failure. `gang`: see `contract.messages.gang`.
    """

    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    missing: tuple[str, ...] = ()
    unusable: tuple[str, ...] = ()
    registry: Registry | None = None
    output_base: str | None = None
    checkpoint: Mapping[str, Any] | None = None
    plugin_state: Mapping[str, Any] | None = None
    gang: Mapping[str, Any] | None = field(default=None, repr=False)
