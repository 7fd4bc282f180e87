"""Addresses of Redis, and the two logins of a cell, derived from its name and key.

One login receives orders and publishes events, the other only sends to the inbox. They are two
because Redis 6.2 cannot restrict one user to adding messages to one list and to taking them from
another.
"""

from urllib.parse import parse_qs, quote, urlsplit

from controlplane.contract.wire import keys


def receiver(cell: str) -> str:
    """Return the user with which a cell receives orders."""
    return f"cell.{cell}"


def sender(cell: str) -> str:
    """Return the user with which a cell sends to the inbox."""
    return f"inbox.{cell}"


def password(key: bytes) -> str:
    """Return the password of both users of the cell with this key."""
    return keys.mac_key(key, keys.REDIS).hex()


def verified(url: str) -> str:
    """Return the address of Redis, so that a `rediss` server needs a valid certificate.

    Celery verifies none by default. `ssl_cert_reqs=none` in the address disables the verification.
    """
    parts = urlsplit(url)
    if parts.scheme != "rediss" or "ssl_cert_reqs" in parse_qs(parts.query):
        return url
    query = "&".join(filter(None, [parts.query, "ssl_cert_reqs=required"]))
    return parts._replace(query=query).geturl()


def with_login(url: str, user: str, key: bytes) -> str:
    """Return the address of Redis with a login of the cell, instead of any other."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{quote(user)}:{password(key)}@{host}").geturl()
