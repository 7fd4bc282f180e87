"""Resolve the plugins that a pool's policy names."""

from controlplane import plugins
from controlplane.domain.placement.cycle.pass_state import Plugins
from controlplane.domain.placement.cycle.plugin_guard import Faults, guard
from controlplane.domain.placement.model.policy import PoolPolicy


def resolve(policy: PoolPolicy, faults: Faults) -> Plugins:
    """Return the policy's plugins; note missing ones as faults and use the default instead."""
    validators = {}
    for name in policy.validators:
        try:
            validators[name] = plugins.get(plugins.Kind.VALIDATOR, name)
        except plugins.NotInstalled as error:
            faults.note(f"validator {name}", str(error))
    named = {plugins.Kind.SEQUENCER: policy.sequencer, plugins.Kind.SELECTOR: policy.selector}
    defaults = {plugins.Kind.SEQUENCER: "fifo", plugins.Kind.SELECTOR: "dispersed"}
    found = {}
    for kind, name in named.items():
        try:
            found[kind] = (name, plugins.get(kind, name))
        except plugins.NotInstalled as error:
            faults.note(f"{str(kind).removesuffix('s')} {name}", str(error))
            found[kind] = (defaults[kind], plugins.get(kind, defaults[kind]))
    return guard(
        faults,
        sequencer=found[plugins.Kind.SEQUENCER],
        selector=found[plugins.Kind.SELECTOR],
        validators=validators,
    )
