"""Write and delete addresses and rules of notifications, and test an address."""

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import transaction

from controlplane.commands.audit import Action, AuditEntry, changed_fields, record
from controlplane.commands.state.apply import apply
from controlplane.contract.addresses import refuse_address
from controlplane.domain.cells.sealing import NONCE_BYTES, NotOpened, seal, unseal
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.notifications.matching import FAILING
from controlplane.domain.notifications.messages import (
    MAX_ADDRESSES,
    MAX_RULES,
    compose_test,
)
from controlplane.domain.state.effects import ClearAlert, Effects
from controlplane.models import NotificationAddress, NotificationMessage, NotificationRule
from controlplane.outbox.notifications.schemes import BadAddress, CheckedUrl, check_url
from controlplane.queries.notifications import about_address, describe_rule, get_rule, open_url
from controlplane.queries.sql import rows
from controlplane.queries.tenancy.secrets import rest_keys
from controlplane.spec import Fault, InvalidSpec
from controlplane.spec.hosts import read_address

_LOCK = zlib.crc32(b"cellrun notification limits")


@dataclass(frozen=True, slots=True)
class RuleFields:
    """The columns of a rule, and the name of its address."""

    address: str
    columns: Mapping[str, Any] = field(default_factory=dict)


def put_address(*, name: str, url: str, now: datetime) -> bool:
    """Write or overwrite an address; return whether it is new.

    Raise InvalidSpec, without any part of the URL; Conflict if there are too many addresses.
    """
    checked = check_address(url)
    written = {
        "sealed": _seal(name, url),
        "masked": checked.masked,
        "service": checked.service,
        "updated_at": now,
    }
    with transaction.atomic():
        _lock_limits()
        former = NotificationAddress.objects.select_for_update().filter(name=name).first()
        if former is None:
            if NotificationAddress.objects.count() >= MAX_ADDRESSES:
                raise Conflict(f"there are {MAX_ADDRESSES} notification addresses, the most")
            NotificationAddress.objects.create(name=name, created_at=now, **written)
        else:
            NotificationAddress.objects.filter(pk=former.pk).update(**written)
        record(
            AuditEntry(
                Action.CREATE_NOTIFICATION_ADDRESS
                if former is None
                else Action.CHANGE_NOTIFICATION_ADDRESS,
                f"notification address {name}",
                before=None if former is None else {"url": former.masked},
                after={"url": checked.masked, "service": checked.service},
            ),
            now=now,
        )
    return former is None


def delete_address(*, name: str, now: datetime) -> None:
    """Delete an address with its rules and messages. Raise NotFound."""
    with transaction.atomic():
        # The locks keep the tick and tests from adding rows that refer to what is deleted.
        list(NotificationRule.objects.select_for_update(of=("self",)).filter(address__name=name))
        found = NotificationAddress.objects.select_for_update().filter(name=name).first()
        if found is None:
            raise NotFound(f"there is no notification address {name}")
        found.delete()
        apply(Effects(cleared=[ClearAlert(FAILING, name)]), now=now)
        entry = AuditEntry(Action.DELETE_NOTIFICATION_ADDRESS, f"notification address {name}")
        record(entry, now=now)


def send_test(*, name: str, now: datetime) -> NotificationMessage:
    """Add a test message to an address, due now. Raise NotFound."""
    with transaction.atomic():
        address = NotificationAddress.objects.filter(name=name).first()
        if address is None:
            raise NotFound(f"there is no notification address {name}")
        message = compose_test(name)
        sent = NotificationMessage.objects.create(
            address=address,
            is_test=True,
            title=message.title,
            body=message.body,
            due_at=now,
            give_up_at=now,
            created_at=now,
        )
        entry = AuditEntry(Action.TEST_NOTIFICATION_ADDRESS, f"notification address {name}")
        record(entry, now=now)
    return sent


def put_rule(*, name: str, wanted: RuleFields, now: datetime) -> bool:
    """Write or replace a rule; return whether it is new.

    A new rule, and one that is enabled again, reports events from now on. Raise InvalidSpec for an
    unknown address, Conflict if there are too many rules.
    """
    with transaction.atomic():
        _lock_limits()
        address = NotificationAddress.objects.filter(name=wanted.address).first()
        if address is None:
            text = f"there is no notification address {wanted.address}"
            raise InvalidSpec([Fault("address", text)])
        locked = NotificationRule.objects.select_for_update(of=("self",), no_key=True)
        former = locked.select_related("address").filter(name=name).first()
        before = None if former is None else describe_rule(former)
        columns = {**wanted.columns, "address": address}
        if former is None:
            if NotificationRule.objects.count() >= MAX_RULES:
                raise Conflict(f"there are {MAX_RULES} notification rules, the most")
            NotificationRule.objects.create(name=name, since=now, created_at=now, **columns)
        else:
            is_begun = former.is_enabled and former.about == columns["about"]
            since = former.since if is_begun else now
            NotificationRule.objects.filter(pk=former.pk).update(since=since, **columns)
        after = describe_rule(get_rule(name))
        changes = (None, after) if before is None else changed_fields(before, after)
        action = (
            Action.CREATE_NOTIFICATION_RULE if before is None else Action.CHANGE_NOTIFICATION_RULE
        )
        subject = f"notification rule {name}"
        record(AuditEntry(action, subject, before=changes[0], after=changes[1]), now=now)
    return former is None


def delete_rule(*, name: str, now: datetime) -> None:
    """Delete a rule with its unsent events; its messages remain. Raise NotFound."""
    with transaction.atomic():
        rule = get_rule(name)
        before = describe_rule(rule)
        NotificationRule.objects.filter(pk=rule.pk).delete()
        subject = f"notification rule {name}"
        record(AuditEntry(Action.DELETE_NOTIFICATION_RULE, subject, before=before), now=now)


def reseal_addresses() -> int:
    """Seal the URLs that a former key sealed with the present one; return how many.

    Raise SealedOtherwise; then nothing is changed.
    """
    resealed = []
    with transaction.atomic():
        for address in NotificationAddress.objects.select_for_update(no_key=True).order_by("pk"):
            sealed, about = bytes(address.sealed), about_address(address.name)
            try:
                unseal(rest_keys()[0], sealed, about=about)
            except NotOpened:
                address.sealed = _seal(address.name, open_url(address.name, sealed))
                address.save(update_fields=["sealed"])
                resealed.append(AuditEntry(Action.RESEAL_SECRET, about, "with the current key"))
        record(*resealed)
    return len(resealed)


def check_address(url: str) -> CheckedUrl:
    """Return the URL of an address. Raise InvalidSpec, without any part of the URL."""
    try:
        checked = check_url(url)
    except BadAddress as error:
        raise InvalidSpec([Fault("url", str(error))]) from None
    address = read_address(checked.host) if checked.host else None
    if address is not None:
        allowed = settings.CELLRUN.callback_allowed_networks
        if why := refuse_address(address, allowed):
            text = f"{why}; allow its network by CELLRUN_CALLBACK_ALLOWED_NETWORKS"
            raise InvalidSpec([Fault("url", text)])
    return checked


def _seal(name: str, url: str) -> bytes:
    about, nonce = about_address(name), os.urandom(NONCE_BYTES)
    return seal(rest_keys()[0], url.encode(), about=about, nonce=nonce)


def _lock_limits() -> None:
    rows("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
