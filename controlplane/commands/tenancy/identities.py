"""Log in users of an OpenID provider: find or create the user, and set its groups."""

from datetime import datetime

from django.contrib.auth.models import Group, User
from django.db import IntegrityError, transaction

from controlplane.commands.audit import Action, AuditEntry, record
from controlplane.domain.errors import Conflict, NotFound, NotPermitted
from controlplane.domain.identities import GroupRules, ProviderUser, unique_name
from controlplane.models import OidcIdentity
from controlplane.queries.tenancy.accounts import find_home

IS_SERVICE_ACCOUNT = "service accounts cannot log in"

ACTOR = "OpenID login"
"""The actor of audit lines about changes that a login causes."""


def log_in_identity(
    identity: ProviderUser, *, rules: GroupRules, may_create: bool, now: datetime
) -> User:
    """Return the user of a verified identity, with the groups that its claims give it.

    The user of an unknown identity is created if `may_create`. An existing user is never taken
    over, whatever its name. Raise NotPermitted.
    """
    try:
        return _log_in(identity, rules, may_create, now)
    except IntegrityError:  # a concurrent first login of this identity or of this name
        return _log_in(identity, rules, may_create, now)


def link_identity(
    *, user: User, issuer: str, subject: str, actor: str, now: datetime
) -> OidcIdentity:
    """Let a user of the provider log in as `user`. Raise Conflict."""
    if find_home(user) is not None:
        raise Conflict(IS_SERVICE_ACCOUNT)
    try:
        with transaction.atomic():
            link = OidcIdentity.objects.create(
                user=user, issuer=issuer, subject=subject, created_at=now
            )
            _audit(actor, Action.LINK_IDENTITY, user, f"to {link}", now)
    except IntegrityError:
        raise Conflict(f"{subject} of {issuer} is linked to a user already") from None
    return link


def unlink_identity(*, link_id: int, actor: str, now: datetime) -> None:
    """Delete the link of a user of the provider. Raise NotFound."""
    with transaction.atomic():
        link = OidcIdentity.objects.select_related("user").filter(pk=link_id).first()
        if link is None:
            raise NotFound(f"there is no OpenID identity {link_id}")
        _audit(actor, Action.UNLINK_IDENTITY, link.user, f"from {link}", now)
        link.delete()


@transaction.atomic
def _log_in(identity: ProviderUser, rules: GroupRules, may_create: bool, now: datetime) -> User:
    links = OidcIdentity.objects.select_for_update(of=("self", "user")).select_related("user")
    link = links.filter(issuer=identity.issuer, subject=identity.subject).first()
    if link is None:
        if not may_create:
            raise NotPermitted("the user is not known to this installation")
        link = _create(identity, now)
    user = link.user
    if find_home(user) is not None:
        raise NotPermitted(IS_SERVICE_ACCOUNT)
    if not user.is_active:
        raise NotPermitted("the user is deactivated")
    OidcIdentity.objects.filter(pk=link.pk).update(last_login_at=now)
    _set_groups(user, identity, rules, now)
    _set_operator(user, rules.makes_operator(identity), now)
    return user


def _create(identity: ProviderUser, now: datetime) -> OidcIdentity:
    is_taken = User.objects.filter(username__iexact=identity.name).exists()
    name = unique_name(identity) if is_taken else identity.name
    user = User.objects.create_user(name)  # without a usable password
    link = OidcIdentity.objects.create(
        user=user, issuer=identity.issuer, subject=identity.subject, created_at=now
    )
    _audit(ACTOR, Action.CREATE_USER, user, f"for {link}", now)
    return link


def _set_groups(user: User, identity: ProviderUser, rules: GroupRules, now: datetime) -> None:
    """Let the user join and leave the groups of the rules; other groups remain."""
    present = set(user.groups.values_list("name", flat=True))
    wanted, managed = rules.wanted(identity), rules.managed()
    joined, left = sorted(wanted - present), sorted((present & managed) - wanted)
    for name in joined:
        user.groups.add(Group.objects.get_or_create(name=name)[0])
    user.groups.remove(*Group.objects.filter(name__in=left))
    if joined or left:
        texts = [f"joined {name}" for name in joined] + [f"left {name}" for name in left]
        _audit(ACTOR, Action.CHANGE_USER, user, ", ".join(texts), now)


def _set_operator(user: User, is_operator: bool | None, now: datetime) -> None:
    """Make the user an operator, or an operator a user; leave the staff flag of others alone."""
    if is_operator is None or is_operator == (user.is_superuser and user.is_staff):
        return
    if not is_operator and not user.is_superuser:
        return
    user.is_superuser = user.is_staff = is_operator
    user.save(update_fields=["is_superuser", "is_staff"])
    text = "is an operator now" if is_operator else "is no longer an operator"
    _audit(ACTOR, Action.CHANGE_USER, user, text, now)


def _audit(actor: str, action: Action, user: User, text: str, now: datetime) -> None:
    record(AuditEntry(action, f"user {user.get_username()}", text), actor=actor, now=now)
