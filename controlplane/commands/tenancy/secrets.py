"""Write, delete and reseal secrets; no command returns a written value."""

import os
from collections.abc import Sequence
from datetime import datetime

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet

from controlplane.commands.audit import Action, AuditEntry, record
from controlplane.domain.cells.sealing import NONCE_BYTES, NotOpened, seal, unseal
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.jobs.secrets import MAX_VALUE_BYTES, about_secret, read_registry
from controlplane.models import Project, Secret
from controlplane.queries.tenancy.secrets import open_value, rest_keys

PAGE = 200


def put_secret(
    *, project_id: int, name: str, value: bytes, writer: User | None, now: datetime
) -> bool:
    """Write or overwrite the secret `name` of a project; return whether it is new.

    Attempts that have begun keep the previous value. Raise Conflict if the project is archived.
    """
    if len(value) > MAX_VALUE_BYTES:
        raise ValueError(f"a secret has at most {MAX_VALUE_BYTES} bytes")
    login = read_registry(value)
    written = {
        "registry_server": "" if login is None else login.server,
        "sealed": _seal(value, project_id, name),
        "size": len(value),
        "written_by": writer,
        "updated_at": now,
    }
    with transaction.atomic():
        if Project.objects.filter(pk=project_id, archived_at__isnull=False).exists():
            raise Conflict("the project is archived: it accepts no secrets")
        secret, is_new = Secret.objects.select_for_update(no_key=True).get_or_create(
            project_id=project_id, name=name, defaults={**written, "created_at": now}
        )
        if not is_new:
            Secret.objects.filter(pk=secret.pk).update(**written, version=secret.version + 1)
        action = Action.CREATE_SECRET if is_new else Action.CHANGE_SECRET
        after = {"version": 1 if is_new else secret.version + 1}
        before = None if is_new else {"version": secret.version}
        entry = AuditEntry(
            action, f"secret {name}", project_id=project_id, before=before, after=after
        )
        record(entry, actor=None if writer is None else writer.get_username(), now=now)
    return is_new


def delete_secret(*, project_id: int, name: str) -> None:
    """Delete a secret; pending tasks that name it will fail. Raise NotFound."""
    if not _delete(Secret.objects.filter(project_id=project_id, name=name)):
        raise NotFound(f"the project has no secret {name}")


def drop_secrets(ids: Sequence[int]) -> None:
    """Delete secrets by id."""
    _delete(Secret.objects.filter(pk__in=ids))


def _delete(found: QuerySet[Secret]) -> int:
    with transaction.atomic():
        secrets = list(found.select_for_update().only("id", "project_id", "name", "version"))
        Secret.objects.filter(pk__in=[secret.pk for secret in secrets]).delete()
        record(
            *(
                AuditEntry(
                    Action.DELETE_SECRET,
                    f"secret {secret.name}",
                    project_id=secret.project_id,
                    before={"version": secret.version},
                )
                for secret in secrets
            )
        )
    return len(secrets)


def reseal_page(*, after: int) -> tuple[int | None, int]:
    """Seal a page of secrets with the current key if an older key sealed them.

    Return the id after which the next page begins (None at the end) and the number of resealed
    secrets. Raise SealedOtherwise; then nothing of the page was changed.
    """
    keys = rest_keys()
    resealed: list[AuditEntry] = []
    with transaction.atomic():
        page = list(
            Secret.objects.select_for_update(no_key=True).filter(pk__gt=after).order_by("pk")[:PAGE]
        )
        for secret in page:
            sealed, about = bytes(secret.sealed), about_secret(secret.project_id, secret.name)
            try:
                unseal(keys[0], sealed, about=about)
            except NotOpened:
                value = open_value(keys[1:], sealed, secret.project_id, secret.name)
                secret.sealed = _seal(value, secret.project_id, secret.name)
                secret.save(update_fields=["sealed"])
                resealed.append(
                    AuditEntry(
                        Action.RESEAL_SECRET,
                        f"secret {secret.name}",
                        "with the current key",
                        project_id=secret.project_id,
                    )
                )
        record(*resealed)
    return (page[-1].pk if len(page) == PAGE else None), len(resealed)


def _seal(value: bytes, project_id: int, name: str) -> bytes:
    key = rest_keys()[0]
    return seal(key, value, about=about_secret(project_id, name), nonce=os.urandom(NONCE_BYTES))
