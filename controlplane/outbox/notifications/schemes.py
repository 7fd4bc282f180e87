"""Check addresses of notifications: Apprise URLs of services on the network.

Schemes that write files, run programs or use the desktop are not permitted, nor are parameters that
name local files. Error texts contain no part of a URL, since each part may be a secret.
"""

import logging
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from controlplane.spec.hosts import read_address

_WITH_HOST = frozenset(
    scheme + end
    for scheme in (
        "form",
        "gotify",
        "json",
        "mailto",
        "matrix",
        "mmost",
        "ntfy",
        "rocket",
        "signal",
        "xml",
    )
    for end in ("", "s")
)
SCHEMES = _WITH_HOST | {
    "discord",
    "gchat",
    "opsgenie",
    "pagerduty",
    "pover",
    "slack",
    "tgram",
    "webex",
    "workflow",
    "workflows",
    "wxteams",
    "zulip",
}
"""Schemes whose plugins only make requests to a server."""

_FILES = frozenset(
    ["attach", "cert", "key", "pgp", "pgpkey", "pgpprivkey", "pgppubkey", "pgpsign", "template"]
)
MAX_URL = 4_096


class BadAddress(ValueError):
    """The URL is not accepted; the text contains no part of it except a known scheme."""


@dataclass(frozen=True, slots=True)
class CheckedUrl:
    """A URL that Apprise accepts. `host`: an IP address that it names, otherwise empty."""

    url: str = field(repr=False)
    scheme: str
    service: str
    host: str = ""

    @property
    def masked(self) -> str:
        """Return the URL without everything that may be a secret."""
        return f"{self.scheme}://…"


def check_url(url: str) -> CheckedUrl:
    """Return the URL with the service that it names. Raise BadAddress."""
    scheme, separator, _ = url.partition("://")
    scheme = scheme.lower()
    if not separator or not scheme.isalnum():
        raise BadAddress("is not a URL of Apprise, such as mailtos://user:password@example.org")
    if scheme not in SCHEMES:
        known = ", ".join(sorted(SCHEMES))
        raise BadAddress(f"the scheme of the URL is not permitted (permitted: {known})")
    if len(url) > MAX_URL or any(char.isspace() or not char.isprintable() for char in url):
        raise BadAddress(f"must have at most {MAX_URL} characters and no spaces")
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        raise BadAddress("cannot be parsed as a URL") from None
    if files := _parameters(url) & _FILES:
        raise BadAddress(f"the parameter {min(files)} names a file, which is not permitted")
    plugin = make_plugin(url)
    if plugin is None:
        raise BadAddress(f"Apprise does not accept it as an address of the scheme {scheme}")
    address = host if scheme in _WITH_HOST and read_address(host) is not None else ""
    return CheckedUrl(url, scheme, str(plugin.service_name), address)


def _parameters(url: str) -> set[str]:
    """Return the names of parameters as Apprise reads them: also behind `#`, `;` and spaces."""
    from apprise.utils.parse import parse_url

    return set((parse_url(url, verify_host=False) or {}).get("qsd", ()))


def make_plugin(url: str) -> Any:
    """Return Apprise's object for a URL, or None: without files, plugins of users and logs."""
    import apprise  # takes half a second

    logger = logging.getLogger("apprise")  # its lines contain URLs
    logger.propagate = False
    logger.disabled = True
    asset = apprise.AppriseAsset(
        app_id="Cellrun",
        app_desc="Cellrun",
        app_url="",
        image_url_mask="",
        image_url_logo="",
        plugin_paths=[],
        storage_mode=apprise.PersistentStoreMode.MEMORY,
        async_mode=False,
    )
    return apprise.Apprise.instantiate(url, asset=asset, suppress_exceptions=True)
