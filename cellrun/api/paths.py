"""Compose paths and queries of requests from names."""

import re
from collections.abc import Collection, Iterator, Mapping
from urllib.parse import quote

from cellrun.errors import BadInput

MOST_IDS = 1_000
"""Ids in the query of one request."""

Query = Mapping[str, str | int | None]
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def names_of(project: str) -> tuple[str, str]:
    """Return the domain and the name of a project, `name` or `domain/name`."""
    domain, slash, name = project.partition("/")
    return (domain, name) if slash else ("default", project)


def project_path(project: str) -> str:
    """Return the path of a project, `name` or `domain/name`. Raise BadInput."""
    domain, name = names_of(project)
    return path_to("projects", _checked("domain", domain), _checked("project", name))


def members_path(project: str | None, domain: str | None) -> str:
    """Return the path of the members of a project, of a domain, or of the installation."""
    if project is not None:
        return project_path(project) + "/members"
    return (
        "/auditors" if domain is None else path_to("domains", _checked("domain", domain), "members")
    )


def _checked(kind: str, name: str) -> str:
    """Return the name. Raise BadInput if it cannot be that of a `kind`: no URL has such a name."""
    if not _NAME.fullmatch(name):
        raise BadInput(
            f"{name!r} is not a name of a {kind}: use lower-case letters, digits, and (not first)"
            " . _ -; at most 63 characters"
        )
    return name


def batched(ids: Collection[int]) -> Iterator[str]:
    """Yield ids, newest first and separated by commas, in parts that one request can have."""
    found = sorted(set(ids), reverse=True)
    for start in range(0, len(found), MOST_IDS):
        yield ",".join(map(str, found[start : start + MOST_IDS]))


def path_to(*parts: str | int) -> str:
    """Return the path of these parts, each quoted. Raise BadInput if one is empty."""
    if "" in parts:
        raise BadInput(f"a name is empty in {'/'.join(map(str, parts))}")
    return "".join(f"/{quote(str(part), safe='')}" for part in parts)


def project_query(project: str | None) -> Query:
    """Return the query for a project, `name` or `domain/name`; None: the server's default."""
    if project is None:
        return {}
    domain, slash, name = project.partition("/")
    return {"domain": domain, "project": name} if slash else {"project": project}
