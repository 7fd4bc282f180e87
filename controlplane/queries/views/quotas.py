"""Load quotas for the API and the admin: limits and usage of a user, project or domain."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.contrib.auth import get_user_model
from django.db.models import Q

from controlplane.domain.errors import NotFound
from controlplane.domain.roles import Access
from controlplane.domain.scopes import Scope, ScopeKind
from controlplane.models import Domain, Project, Quota
from controlplane.queries.placement.quotas import (
    ScopeUsage,
    count_waiting,
    load_scope_usage,
)
from controlplane.queries.views.amounts import shown_amounts

# The domain of a project's name without a domain, as in a job.
_DEFAULT_DOMAIN = "default"


@dataclass(frozen=True, slots=True)
class NamedScope:
    """A user, project or domain with its name: "ann", "default/default", "default"."""

    scope: Scope
    name: str


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """The current usage of a scope, and the number of its PENDING tasks."""

    held: ScopeUsage
    waiting: int


def find_scope(kind: ScopeKind, name: str) -> NamedScope:
    """Return the scope of that name. A project is `domain/name`, or a bare name. Raise NotFound."""
    match kind:
        case ScopeKind.USER:
            key = _first(get_user_model(), username=name)
        case ScopeKind.DOMAIN:
            key = _first(Domain, name=name)
        case ScopeKind.PROJECT:
            domain, slash, alone = name.partition("/")
            home, project = (domain, alone) if slash else (_DEFAULT_DOMAIN, domain)
            key, name = _first(Project, domain__name=home, name=project), f"{home}/{project}"
    if key is None:
        raise NotFound(f"there is no {kind} {name}")
    return NamedScope(Scope(kind, key), name)


def list_quotas(
    *, kind: ScopeKind | None, reader: Access, before: int | None, limit: int
) -> tuple[list[dict[str, Any]], int | None]:
    """Return at most `limit` quotas older than `before`, newest first, and the next `before`.

    They are those of the reader, and of the projects and domains that the reader may read.
    """
    found = Quota.objects.select_related("user", "project__domain", "domain").order_by("-id")
    if kind is not None:
        found = found.filter(**{f"{kind}__isnull": False})
    if not reader.may_audit:
        found = found.filter(
            Q(user=reader.user_id) | Q(project__in=reader.projects) | Q(domain__in=reader.domains)
        )
    if before is not None:
        found = found.filter(pk__lt=before)
    quotas = list(found[: limit + 1])
    shown = quotas[:limit]
    named = [scope_of(quota) for quota in shown]
    uses = load_uses(item.scope for item in named)
    documents = [
        _document(item, quota, uses[item.scope]) for item, quota in zip(named, shown, strict=True)
    ]
    return documents, shown[-1].pk if len(quotas) > limit else None


def get_quota(kind: ScopeKind, name: str) -> dict[str, Any]:
    """Return the quota of the scope of that name, also without limits. Raise NotFound."""
    named = find_scope(kind, name)
    quota = Quota.objects.filter(**{f"{kind}_id": named.scope.key}).first()
    return _document(named, quota or Quota(), load_uses([named.scope])[named.scope])


def is_readable(scope: Scope, reader: Access) -> bool:
    """Return whether a caller may read the quota of a scope."""
    own: Mapping[ScopeKind, Container[int]] = {
        ScopeKind.USER: (reader.user_id,),
        ScopeKind.PROJECT: reader.projects,
        ScopeKind.DOMAIN: reader.domains,
    }
    return reader.may_audit or scope.key in own[scope.kind]


def load_uses(scopes: Iterable[Scope]) -> dict[Scope, QuotaUse]:
    """Return the current usage of `scopes`, by two statements."""
    wanted = list(scopes)
    held, waiting = load_scope_usage(wanted, with_jobs=True), count_waiting(wanted)
    return {scope: QuotaUse(held[scope], waiting[scope]) for scope in wanted}


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
        "resources": shown_amounts(quota.resources),
        "running_tasks": quota.running_tasks,
        "running_jobs": quota.running_jobs,
        "pending_tasks": quota.pending_tasks,
        "weight": quota.weight,
        "usage": {
            "resources": shown_amounts(use.held.resources),
            "running_tasks": use.held.tasks,
            "running_jobs": len(use.held.jobs),
            "pending_tasks": use.waiting,
        },
    }
