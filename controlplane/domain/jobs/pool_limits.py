"""Limits of a pool for the values of its jobs, in the manner of Kubernetes' LimitRange; pure.

They are checked on submission and retry only, so a later change does not affect existing jobs.
"""

from collections.abc import Iterator
from typing import Any

from controlplane.spec import JobSpec, TaskGroupSpec, quantities
from controlplane.spec.faults import Finding
from controlplane.spec.group import GroupFields
from controlplane.spec.job import DEFAULT_TTL_SECONDS
from controlplane.spec.limits import JobLimits
from controlplane.spec.parts import Retries

_DEFAULT_PIDS = int(GroupFields.model_fields["max_pids"].default)
_DEFAULT_PULL = str(GroupFields.model_fields["pull_policy"].default)
_DEFAULT_SHM = int(GroupFields.model_fields["shm"].default)
_DEFAULT_GRACE = float(GroupFields.model_fields["stop_grace_seconds"].default)


def limit_defaults(spec: JobSpec, limits: JobLimits) -> JobSpec:
    """Return `spec` with default values that exceed a limit set to that limit.

    Otherwise a limit below a default would refuse every job that does not set the value.
    """
    ttl = spec.ttl_seconds_after_finished
    if ttl == DEFAULT_TTL_SECONDS and ttl > limits.max_ttl_seconds:
        spec = spec.model_copy(update={"ttl_seconds_after_finished": limits.max_ttl_seconds})
    groups = [_limit_group(group, limits) for group in spec.groups]
    if all(new is old for new, old in zip(groups, spec.groups, strict=True)):
        return spec
    return spec.model_copy(update={"groups": groups})


def _limit_group(group: TaskGroupSpec, limits: JobLimits) -> TaskGroupSpec:
    changes: dict[str, Any] = {}
    if limits.always_pull and group.image and group.pull_policy == _DEFAULT_PULL:
        changes["pull_policy"] = "always"
    if group.max_pids == _DEFAULT_PIDS and group.max_pids > limits.max_pids:
        changes["max_pids"] = limits.max_pids
    if group.shm == _DEFAULT_SHM and group.shm > limits.max_shm_mib:
        changes["shm"] = limits.max_shm_mib
    if group.stop_grace_seconds == _DEFAULT_GRACE and limits.max_grace_seconds < _DEFAULT_GRACE:
        changes["stop_grace_seconds"] = limits.max_grace_seconds
    return group.model_copy(update=changes) if changes else group


def find_limit_faults(spec: JobSpec, limits: JobLimits, *, pool: str) -> Iterator[Finding]:
    """Yield each value of the job that exceeds a limit of its pool."""
    if spec.ttl_seconds_after_finished > limits.max_ttl_seconds:
        text = f"must be at most {limits.max_ttl_seconds} s in pool {pool}"
        yield ("ttl_seconds_after_finished",), text
    yield from _check_retries(spec.retries, limits, pool)
    for position, group in enumerate(spec.groups):
        for place, text in (
            *_check_group(group, limits, pool),
            *_check_retries(group.retries, limits, pool),
        ):
            yield ("groups", position, *place), text


def _check_group(group: TaskGroupSpec, limits: JobLimits, pool: str) -> Iterator[Finding]:
    if group.max_pids > limits.max_pids:
        yield ("max_pids",), f"must be at most {limits.max_pids} in pool {pool}"
    if group.stop_grace_seconds > limits.max_grace_seconds:
        text = f"must be at most {limits.max_grace_seconds:g} s in pool {pool}"
        yield ("stop_grace_seconds",), text
    if group.shm > limits.max_shm_mib:
        most = quantities.format_mib(limits.max_shm_mib)
        yield ("shm",), f"must be at most {most} in pool {pool}"
    if limits.always_pull and group.image and group.pull_policy != "always":
        yield ("pull_policy",), f"must be always in pool {pool}"
    for name, count in (("ports", limits.max_ports), ("outputs", limits.max_outputs)):
        if len(getattr(group, name)) > count:
            yield (name,), f"must have at most {count} items in pool {pool}"
    check, least = group.health_check, limits.min_check_interval_seconds
    if check is not None and check.interval_seconds < least:
        text = f"must be at least {least:g} s in pool {pool}"
        yield ("health_check", "interval_seconds"), text


def _check_retries(retries: Retries | None, limits: JobLimits, pool: str) -> Iterator[Finding]:
    """Yield limits of retries that the job sets; the defaults are sane in every pool."""
    for name in sorted(retries.model_fields_set) if retries is not None else ():
        if getattr(retries, name) > limits.max_retries:
            yield ("retries", name), f"must be at most {limits.max_retries} in pool {pool}"
