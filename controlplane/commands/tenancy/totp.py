"""Second factors of local users: enroll, use, reset and reseal them."""

import os
from datetime import datetime

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from controlplane.commands.audit import Action, AuditEntry, record
from controlplane.domain.cells.sealing import NONCE_BYTES, NotOpened, seal, unseal
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.totp import (
    RECOVERY_BYTES,
    RECOVERY_CODES,
    about_totp,
    find_step,
    is_totp,
    normalize_code,
    recovery_code,
    recovery_digest,
)
from controlplane.models import RecoveryCode, TotpDevice
from controlplane.queries.tenancy.secrets import rest_keys


def seal_key(key: bytes, *, user_id: int) -> bytes:
    """Return a key sealed for the user."""
    return seal(rest_keys()[0], key, about=about_totp(user_id), nonce=os.urandom(NONCE_BYTES))


def open_key(sealed: bytes, *, user_id: int) -> bytes:
    """Return the key that `seal_key` sealed. Raise Conflict if no key of the settings opens it."""
    for key in rest_keys():
        try:
            return unseal(key, sealed, about=about_totp(user_id))
        except NotOpened:
            continue
    raise Conflict("the second factor was sealed with another CELLRUN_SECRET_KEY: reset it")


def enroll_totp(*, user: User, key: bytes, code: str, now: datetime) -> list[str] | None:
    """Give the user a second factor if `code` is a code of `key`.

    Return the recovery codes, which are not stored in clear; None if the code is wrong. Raise
    Conflict if the user has a second factor.
    """
    step = find_step(key, normalize_code(code), now=now.timestamp())
    if step is None:
        return None
    codes = [recovery_code(os.urandom(RECOVERY_BYTES)) for _ in range(RECOVERY_CODES)]
    try:
        with transaction.atomic():
            device = TotpDevice.objects.create(
                user=user,
                sealed=seal_key(key, user_id=user.pk),
                last_step=step,
                created_at=now,
            )
            RecoveryCode.objects.bulk_create(
                RecoveryCode(device=device, digest=recovery_digest(each)) for each in codes
            )
            _audit(user.get_username(), Action.SET_UP_SECOND_FACTOR, user, now)
    except IntegrityError:
        raise Conflict("the user has a second factor already") from None
    return codes


def use_code(*, user_id: int, code: str, now: datetime) -> str | None:
    """Use up a code of the user's second factor, or a recovery code.

    Return what it was, for the audit log; None if it is wrong or was used. Raise Conflict.
    """
    device = TotpDevice.objects.filter(user_id=user_id).first()
    if device is None:
        return None
    text = normalize_code(code)
    if not is_totp(text):
        used, _ = RecoveryCode.objects.filter(device=device, digest=recovery_digest(text)).delete()
        return "a recovery code" if used else None
    key = open_key(bytes(device.sealed), user_id=user_id)
    step = find_step(key, text, now=now.timestamp())
    if step is None:
        return None
    # One of two concurrent logins with the same code changes the row, and the other changes none.
    fresh = TotpDevice.objects.filter(pk=device.pk, last_step__lt=step).update(last_step=step)
    return "a code" if fresh else None


def reset_totp(*, user: User, actor: str, now: datetime) -> None:
    """Delete the second factor of a user with its recovery codes. Raise NotFound."""
    with transaction.atomic():
        deleted, _ = TotpDevice.objects.filter(user=user).delete()
        if not deleted:
            raise NotFound(f"{user.get_username()} has no second factor")
        _audit(actor, Action.RESET_SECOND_FACTOR, user, now)


def reseal_totp_keys() -> int:
    """Seal all keys with the current key; return how many an older key had sealed.

    Raise Conflict if none opens one; then nothing is changed.
    """
    resealed = 0
    with transaction.atomic():
        for device in TotpDevice.objects.select_for_update().order_by("pk"):
            sealed, about = bytes(device.sealed), about_totp(device.user_id)
            try:
                unseal(rest_keys()[0], sealed, about=about)
            except NotOpened:
                key = open_key(sealed, user_id=device.user_id)
                device.sealed = seal_key(key, user_id=device.user_id)
                device.save(update_fields=["sealed"])
                resealed += 1
    return resealed


def _audit(actor: str, action: Action, user: User, now: datetime) -> None:
    record(AuditEntry(action, f"user {user.get_username()}"), actor=actor, now=now)
