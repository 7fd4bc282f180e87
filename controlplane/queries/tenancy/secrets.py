"""Load secrets of projects: their descriptions, and, only for cells, their values."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from django.conf import settings
from django.db.models import QuerySet

from controlplane.domain.cells.sealing import NotOpened, rest_key, unseal
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.jobs.secrets import about_secret
from controlplane.models import Secret
from controlplane.queries.sql import rows


class SealedOtherwise(Conflict):
    """A value was sealed with a key that this installation does not have."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the secret {name} cannot be opened: it was sealed with another CELLRUN_SECRET_KEY"
            " or CELLRUN_SEALING_KEY; name that one in CELLRUN_SECRET_KEY_FALLBACKS or"
            " CELLRUN_SEALING_KEY_FALLBACKS, or write the secret again"
        )


@dataclass(frozen=True, slots=True)
class OpenedSecrets:
    """Values by name, and the names without a secret."""

    values: Mapping[str, bytes] = field(repr=False)
    missing: tuple[str, ...]


def list_secrets(project_id: int, *, after: str | None, limit: int) -> list[Secret]:
    """Return a project's secrets by name, without their values."""
    found = _described().filter(project_id=project_id, name__gt=after or "")
    return list(found.order_by("name")[:limit])


def get_secret(project_id: int, name: str) -> Secret:
    """Return one secret without its value. Raise NotFound."""
    secret = _described().filter(project_id=project_id, name=name).first()
    if secret is None:
        raise NotFound(f"the project has no secret {name}")
    return secret


def find_servers(wanted: Iterable[tuple[int, str]]) -> dict[tuple[int, str], str | None]:
    """Return the `registry_server` of each (project id, name); None: there is no such secret."""
    requested = sorted(set(wanted))
    if not requested:
        return {}
    found = rows(
        """
        SELECT project_id, name, registry_server FROM controlplane_secret
        WHERE (project_id, name) IN (SELECT * FROM unnest(%s::bigint[], %s::text[]))
        """,
        [[project for project, _ in requested], [name for _, name in requested]],
    )
    servers = {(project_id, name): server for project_id, name, server in found}
    return {key: servers.get(key) for key in requested}


def open_secrets(project_id: int, names: Iterable[str]) -> OpenedSecrets:
    """Return the values of a project's secrets. Raise SealedOtherwise."""
    wanted = sorted(set(names))
    if not wanted:
        return OpenedSecrets({}, ())
    found = Secret.objects.filter(project_id=project_id, name__in=wanted)
    sealed = dict(found.values_list("name", "sealed"))
    keys = rest_keys()
    values = {
        name: open_value(keys, bytes(sealed[name]), project_id, name)
        for name in wanted
        if name in sealed
    }
    return OpenedSecrets(values, tuple(name for name in wanted if name not in sealed))


def rest_keys() -> tuple[bytes, ...]:
    """Return the keys that secrets may be sealed with, the current one first."""
    texts = (
        settings.CELLRUN.sealing_key or settings.SECRET_KEY,
        *settings.CELLRUN.sealing_key_fallbacks,
        settings.SECRET_KEY,
        *settings.SECRET_KEY_FALLBACKS,
    )
    return tuple(map(rest_key, dict.fromkeys(texts)))


def open_value(keys: Iterable[bytes], sealed: bytes, project_id: int, name: str) -> bytes:
    """Open a sealed value with the first key that fits. Raise SealedOtherwise."""
    for key in keys:
        try:
            return unseal(key, sealed, about=about_secret(project_id, name))
        except NotOpened:
            continue
    raise SealedOtherwise(name)


def _described() -> QuerySet[Secret]:
    """Return a queryset without the sealed values."""
    return Secret.objects.defer("sealed").select_related("project__domain", "written_by")
