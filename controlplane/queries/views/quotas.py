"""Load quotas for the API and the admin: limits and usage of a user, project or domain."""

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from django.contrib.auth import get_user_model
from django.db.models import Q

from controlplane.domain.errors import NotFound
from controlplane.domain.roles import Access
from controlplane.domain.scopes import Scope, ScopeKind, split_project_name
from controlplane.models import Domain, Project, Quota
from controlplane.queries.placement.quotas import (
    ScopeUsage,
    count_waiting,
    load_scope_usage,
)
from controlplane.queries.tenancy.stored_bytes import count_stored_bytes
from controlplane.queries.views.amounts import shown_amounts

DEFAULT: Final = "default"
"""The kind of the quotas of scopes without one of their own."""

QuotaKind = ScopeKind | Literal["default"]


@dataclass(frozen=True, slots=True)
class NamedScope:
    """A user, project or domain with its name: "ann", "default/default", "default"."""

    scope: Scope
    name: str


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """The current usage of a scope, and the number of its PENDING tasks.

    `stored_bytes`: what the store has for a project; None for users and domains.
    """

    held: ScopeUsage
    waiting: int
    stored_bytes: int | None = None


def find_scope(kind: ScopeKind, name: str) -> NamedScope:
    """Return the scope of that name. A project is `domain/name`, or a bare name. Raise NotFound."""
    match kind:
        case ScopeKind.USER:
            key = _first(get_user_model(), username=name)
        case ScopeKind.DOMAIN:
            key = _first(Domain, name=name)
        case ScopeKind.PROJECT:
            domain, project = split_project_name(name)
            key, name = _first(Project, domain__name=domain, name=project), f"{domain}/{project}"
    if key is None:
        raise NotFound(f"there is no {kind} {name}")
    return NamedScope(Scope(kind, key), name)


def list_quotas(
    *, kind: QuotaKind | None, reader: Access, before: int | None, limit: int
) -> tuple[list[dict[str, Any]], int | None]:
    """Return at most `limit` quotas older than `before`, newest first, and the next `before`.

    They are those of the reader, and of the projects and domains that the reader may read.
    """
    found = Quota.objects.select_related("user", "project__domain", "domain").order_by("-id")
    if kind == DEFAULT:
        found = found.exclude(default_for="")
    elif kind is not None:
        found = found.filter(**{f"{kind}__isnull": False})
    if not reader.may_audit:
        found = found.filter(
            Q(user=reader.user_id)
            | _one_of("project", reader.readable)
            | _one_of("domain", reader.readable_domains)
            | ~Q(default_for="")
        )
    if before is not None:
        found = found.filter(pk__lt=before)
    quotas = list(found[: limit + 1])
    shown = quotas[:limit]
    named = {quota.pk: scope_of(quota) for quota in shown if not quota.default_for}
    uses = load_uses(item.scope for item in named.values())
    documents = [
        _document(named[quota.pk], quota, uses[named[quota.pk].scope])
        if quota.pk in named
        else _default_document(quota)
        for quota in shown
    ]
    return documents, shown[-1].pk if len(quotas) > limit else None


def get_quota(kind: ScopeKind, name: str) -> dict[str, Any]:
    """Return the limits of the scope of that name, also those of the default quota, or without
    any. Raise NotFound.
    """
    named = find_scope(kind, name)
    key = {f"{kind}_id": named.scope.key}
    quota = Quota.objects.filter(**key).first()
    use = load_uses([named.scope])[named.scope]
    if quota is not None:
        return _document(named, quota, use)
    default = Quota.objects.filter(default_for=kind).first()
    return {**_document(named, default or Quota(**key), use), "is_default": default is not None}


def get_default_quota(kind: ScopeKind) -> dict[str, Any]:
    """Return the default quota of a kind, also without limits."""
    return _default_document(
        Quota.objects.filter(default_for=kind).first() or Quota(default_for=kind)
    )


def find_kind(name: str) -> ScopeKind:
    """Return the kind of scopes that a default quota is for. Raise NotFound."""
    if name not in list(ScopeKind):
        raise NotFound(f"there are default quotas of {', '.join(ScopeKind)}, not of {name}")
    return ScopeKind(name)


def is_readable(scope: Scope, reader: Access) -> bool:
    """Return whether a caller may read the quota of a scope."""
    own: Mapping[ScopeKind, Container[int] | None] = {
        ScopeKind.USER: None if reader.may_audit else (reader.user_id,),
        ScopeKind.PROJECT: reader.readable,
        ScopeKind.DOMAIN: reader.readable_domains,
    }
    readable = own[scope.kind]
    return readable is None or scope.key in readable


def _one_of(field: str, keys: Collection[int] | None) -> Q:
    """Return the condition that a quota is of a scope among `keys`; None: of any."""
    if keys is None:
        return Q(**{f"{field}__isnull": False})
    return Q(**{f"{field}__in": keys})


def load_uses(scopes: Iterable[Scope]) -> dict[Scope, QuotaUse]:
    """Return the current usage of `scopes`, by three statements."""
    wanted = list(scopes)
    held, waiting = load_scope_usage(wanted, with_jobs=True), count_waiting(wanted)
    projects = [scope for scope in wanted if scope.kind is ScopeKind.PROJECT]
    by_id = count_stored_bytes({scope.key for scope in projects})
    stored = {scope: by_id[scope.key] for scope in projects}
    return {scope: QuotaUse(held[scope], waiting[scope], stored.get(scope)) for scope in wanted}


def scope_of(quota: Quota) -> NamedScope:
    """Return the scope of the quota."""
    if quota.user is not None:
        return NamedScope(Scope(ScopeKind.USER, quota.user.pk), quota.user.get_username())
    if quota.project is not None:
        return NamedScope(Scope(ScopeKind.PROJECT, quota.project.pk), str(quota.project))
    if quota.domain is not None:
        return NamedScope(Scope(ScopeKind.DOMAIN, quota.domain.pk), quota.domain.name)
    raise AssertionError("a quota needs an owner")


def _first(model: Any, **named: str) -> int | None:
    key: int | None = model.objects.filter(**named).values_list("pk", flat=True).first()
    return key


def _document(named: NamedScope, quota: Quota, use: QuotaUse) -> dict[str, Any]:
    return {
        "kind": named.scope.kind.value,
        "name": named.name,
        **_limits(quota),
        "is_default": False,
        "usage": {
            "resources": shown_amounts(use.held.resources),
            "running_tasks": use.held.tasks,
            "running_jobs": len(use.held.jobs),
            "pending_tasks": use.waiting,
            "stored_bytes": use.stored_bytes,
        },
    }


def _default_document(quota: Quota) -> dict[str, Any]:
    return {
        "kind": DEFAULT,
        "name": quota.default_for,
        **_limits(quota),
        "is_default": True,
        "usage": None,
    }


def _limits(quota: Quota) -> dict[str, Any]:
    limits = quota.limits()
    return {**limits, "resources": shown_amounts(limits["resources"])}
