"""The installed plugins: the built-in ones, and those of other packages by entry point.

A package registers a plugin by an entry point in the group of its kind (`cellrun.validators`,
`cellrun.sequencers`, `cellrun.selectors`, `cellrun.hooks`) that names a class. Each process creates
one instance without arguments, which must have the methods of its protocol. A plugin with the name
of a built-in one, or one that cannot be loaded, is logged and not installed.
"""

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

import structlog

from controlplane.domain.hooks.built_in import BUILT_IN as HOOKS
from controlplane.domain.placement.plugins.selectors import BUILT_IN as SELECTORS
from controlplane.domain.placement.plugins.sequencers import BUILT_IN as SEQUENCERS
from controlplane.domain.placement.plugins.validators import BUILT_IN as VALIDATORS

log = structlog.get_logger(__name__)


class Kind(StrEnum):
    """The kinds of plugins; each is the last part of its entry point group."""

    VALIDATOR = "validators"
    SEQUENCER = "sequencers"
    SELECTOR = "selectors"
    HOOK = "hooks"

    @classmethod
    def of_field(cls, field: str) -> "Kind":
        """Return the kind of a pool's field: "sequencer", "selector" or "validators"."""
        return cls(field if field.endswith("s") else f"{field}s")


_BUILT_IN: Mapping[Kind, Mapping[str, type[Any]]] = {
    Kind.VALIDATOR: VALIDATORS,
    Kind.SEQUENCER: SEQUENCERS,
    Kind.SELECTOR: SELECTORS,
    Kind.HOOK: HOOKS,
}
_METHODS: Mapping[Kind, tuple[str, ...]] = {
    Kind.VALIDATOR: ("check",),
    Kind.SEQUENCER: ("turns",),
    Kind.SELECTOR: ("select",),
    Kind.HOOK: ("prepare", "on_end"),
}


class NotInstalled(LookupError):
    """No plugin of that kind and name is installed."""


@cache
def _installed(kind: Kind) -> Mapping[str, Any]:
    found: dict[str, Any] = {name: build() for name, build in _BUILT_IN[kind].items()}
    for point in sorted(entry_points(group=f"cellrun.{kind}"), key=lambda point: point.name):
        plugin = None
        try:
            plugin = point.load()()
            faults = [name for name in _METHODS[kind] if not callable(getattr(plugin, name, None))]
        except (Exception, SystemExit) as error:  # another package must not stop this process
            faults = [repr(error)]
        if faults or point.name in found:
            why = ", ".join(faults) or "the name is taken"
            log.error("plugin_refused", kind=str(kind), name=point.name, why=why)
        else:
            found[point.name] = plugin
    return MappingProxyType(found)


def names_of(kind: Kind) -> list[str]:
    """Return the names of the installed plugins of a kind, the built-in ones first."""
    return list(_installed(kind))


def get(kind: Kind, name: str) -> Any:
    """Return the plugin. Raise NotInstalled."""
    try:
        return _installed(kind)[name]
    except KeyError:
        what = str(kind).removesuffix("s")
        raise NotInstalled(f"no {what} named {name} is installed") from None


def forget() -> None:
    """Clear the cache, so that the installed packages are read again."""
    _installed.cache_clear()
