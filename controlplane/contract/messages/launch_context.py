"""The launch context of attempts, which a cell fetches before it runs them.

It contains secrets and the last checkpoint. It is not sent through the broker and not stored in the
cell's journal: the cell fetches it from web by a signed request, sealed with its own key
(`keys.SEAL`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controlplane.contract import fields

MAX_PLUGIN_STATE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Registry:
    """Credentials for the registry of an image."""

    username: str
    password: str = field(repr=False)

    def body(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"username": self.username, "password": self.password}


@dataclass(frozen=True, slots=True)
class LaunchContext:
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

    def body(self) -> dict[str, Any]:
        """Return the JSON form."""
        return fields.without_none(
            {
                "secrets": dict(self.secrets) or None,
                "missing": list(self.missing) or None,
                "unusable": list(self.unusable) or None,
                "registry": None if self.registry is None else self.registry.body(),
                "output_base": self.output_base,
                "checkpoint": self.checkpoint,
                "plugin_state": self.plugin_state,
                "gang": self.gang,
            }
        )


def read_briefing(item: Any) -> LaunchContext:
    """Return a launch context. Raise MalformedMessage."""
    body = fields.as_object(item)
    registry = fields.mapping(body, "registry", None)
    return LaunchContext(
        secrets={
            name: fields.as_text(value)
            for name, value in fields.mapping(body, "secrets", {}).items()
        },
        missing=fields.listing(body, "missing", fields.as_text),
        unusable=fields.listing(body, "unusable", fields.as_text),
        registry=None
        if registry is None
        else Registry(fields.text(registry, "username"), fields.text(registry, "password")),
        output_base=fields.text(body, "output_base", None),
        checkpoint=fields.mapping(body, "checkpoint", None),
        plugin_state=fields.mapping(body, "plugin_state", None),
        gang=fields.mapping(body, "gang", None),
    )
