"""What a cell asks for before it runs some attempts: secrets, and what the last attempt left.

It does not travel through the broker, nor is it kept in the cell's journal: the cell fetches it
from web, signed, and gets it sealed with a key of its own (`keys.SEAL`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controlplane.contract import fields

MAX_PLUGIN_STATE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Registry:
    """Who we are to the registry that an image comes from."""

    username: str
    password: str = field(repr=False)

    def body(self) -> dict[str, Any]:
        """As JSON."""
        return {"username": self.username, "password": self.password}


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """The briefing of one attempt. `missing`: secrets that the task names and nobody has set.

    `unusable`: those that are not what the task uses them for: a `registry_secret` without a login.
    `secrets`: values by name, base64. `output_base`: the address below which this attempt, and no
    other, keeps its outputs and checkpoint. `checkpoint`: the address of what the last attempt that
    left one kept, with its manifest. `plugin_state`: the newest that an earlier
    attempt reported since the last user failure. `gang`: of gangs, see `contract.messages.gang`.
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
        """As JSON."""
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
    """A briefing. Raises Malformed."""
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
