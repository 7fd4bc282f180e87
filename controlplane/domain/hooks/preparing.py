"""Preparation of a job by its hook: changed terms are validated like a submission; pure.

The hook receives the submitted terms, not the result of an earlier call: the job is stored as
submitted, and a retry prepares it again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from controlplane.domain.hooks.errors import describe_error
from controlplane.domain.hooks.interface import (
    GroupOrigin,
    GroupTerms,
    Hook,
    HookUnavailable,
    Refusal,
)
from controlplane.spec import InvalidSpec, JobSpec, TaskGroupSpec
from controlplane.spec.faults import Finding
from controlplane.spec.parsing import parse_part
from controlplane.spec.rules import find_faults

Changes = Mapping[str, Any]
"""Fields of a group that its job's kind set, with their effective values."""

_SCALARS = ("timeout_seconds", "idle_timeout_seconds", "lifetime_seconds")
_LISTS = ("ports", "placement_tags")
_MAPPINGS = ("env", "resources")
_LISTED_MAPPINGS = ("constraints", "mounts")


@dataclass(frozen=True, slots=True)
class PreparedJob:
    """The prepared job. `changes`: of each group; `findings`: reasons for its rejection."""

    spec: JobSpec
    changes: Sequence[Changes] = ()
    findings: Sequence[Finding] = ()


def prepare_job(spec: JobSpec, hook: Hook) -> PreparedJob:
    """Let the hook refuse or change the terms of each group, and validate the changes."""
    groups: list[TaskGroupSpec] = []
    changes: list[Changes] = []
    findings: list[Finding] = []
    for position, group in enumerate(spec.groups):
        try:
            changed, shown = _change(group, _call_prepare(spec, group, hook))
        except Refusal as refusal:
            findings.append((("groups", position, refusal.field), str(refusal)))
        except _HookFailed as failure:
            findings.append((("kind",), str(failure)))
        except InvalidSpec as invalid:
            findings += [
                (("groups", position, fault.field), _by_kind(fault.detail, spec))
                for fault in invalid.faults
            ]
        else:
            groups.append(changed)
            changes.append(shown)
    if findings or not any(changes):
        return PreparedJob(spec, changes, findings)
    prepared = spec.model_copy(update={"groups": groups})
    findings = [(place, _by_kind(text, spec)) for place, text in find_faults(prepared)]
    return PreparedJob(prepared, changes, findings)


def name_kind(finding: Finding, spec: JobSpec, changes: Sequence[Changes]) -> Finding:
    """Return the finding; if the kind set the field, with the kind in its text."""
    place, text = finding
    is_changed = any(
        place[:3] == ("groups", position, name)
        for position, changed in enumerate(changes)
        for name in changed
    )
    return place, _by_kind(text, spec) if is_changed else text


def _by_kind(text: str, spec: JobSpec) -> str:
    """Return the text of a fault in a field that the kind set."""
    return f"{text} (set by kind {spec.kind})"


def terms_of(spec: JobSpec, group: TaskGroupSpec) -> GroupTerms:
    """Return the submitted terms of a group, read-only."""
    origin = GroupOrigin(
        spec.name, group.name, spec.domain, spec.project, spec.pool, MappingProxyType(spec.labels)
    )
    return GroupTerms(
        timeout_seconds=group.timeout_seconds,
        idle_timeout_seconds=group.idle_timeout_seconds,
        lifetime_seconds=group.lifetime_seconds,
        has_health_check=group.health_check is not None,
        ports=tuple(group.ports),
        env=MappingProxyType(group.env),
        constraints=tuple(_freeze(item.model_dump()) for item in spec.constraints_of(group)),
        placement_tags=tuple(spec.tags_of(group)),
        mounts=tuple(_freeze(mount.model_dump()) for mount in group.mounts),
        resources=MappingProxyType(group.resources.model_dump()),
        origin=origin,
    )


def _freeze(item: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(
        {key: tuple(value) if isinstance(value, list) else value for key, value in item.items()}
    )


class _HookFailed(Exception):
    """The hook raised an error other than Refusal, or did not return in time."""


def _call_prepare(spec: JobSpec, group: TaskGroupSpec, hook: Hook) -> Changes:
    """Return the fields that the hook changed. Raise Refusal, _HookFailed."""
    terms = terms_of(spec, group)
    try:
        return _compare(terms, hook.prepare(terms))
    except Refusal as refusal:
        raise Refusal(refusal.field, describe_error(refusal, str)) from None
    except ValueError as error:
        what, why = "rejected", describe_error(error, str)
    except HookUnavailable as error:
        what, why = "did not return for", describe_error(error, str)
    except Exception as error:  # a hook of another package
        what, why = "failed at", describe_error(error)
    raise _HookFailed(f"the hook {spec.kind} {what} group {group.name}: {why}")


def _compare(before: GroupTerms, after: GroupTerms) -> Changes:
    if after is before:
        return {}
    if not isinstance(after, GroupTerms):
        raise TypeError(f"prepare returned {type(after).__name__} instead of GroupTerms")
    changed: dict[str, Any] = {}
    for name in (*_SCALARS, *_LISTS, *_MAPPINGS, *_LISTED_MAPPINGS):
        value = _thaw(name, getattr(after, name))
        if value != _thaw(name, getattr(before, name)):
            changed[name] = value
    if before.has_health_check and not after.has_health_check:
        changed["health_check"] = None
    if after.has_health_check and not before.has_health_check:
        raise Refusal("health_check", "is required for this kind")
    return changed


def _thaw(name: str, value: Any) -> Any:
    """Return the value of a field as plain data. Raise Refusal for other types.

    Other types are not read, because an iterator may be infinite.
    """
    if name in _SCALARS:
        return value
    if name in _MAPPINGS:
        return _plain_mapping(name, value)
    if not isinstance(value, list | tuple):
        raise Refusal(name, f"must be a list or tuple, but the hook returned {_type_of(value)}")
    if name in _LISTED_MAPPINGS:
        return [_plain_mapping(f"{name}[{place}]", item) for place, item in enumerate(value)]
    return list(value)


def _plain_mapping(place: str, value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict | MappingProxyType):
        raise Refusal(place, f"must be a dict, but the hook returned {_type_of(value)}")
    return {key: list(it) if isinstance(it, tuple) else it for key, it in value.items()}


def _type_of(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def _change(group: TaskGroupSpec, changes: Changes) -> tuple[TaskGroupSpec, Changes]:
    """Return the group with `changes`, and the effective values. Raise InvalidSpec."""
    if not changes:
        return group, {}
    parsed = parse_part(TaskGroupSpec, {"name": group.name, **changes})
    changed = group.model_copy(update={name: getattr(parsed, name) for name in changes})
    return changed, parsed.model_dump(mode="json", include=set(changes))
