"""Addresses of stores: object stores and folders."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

_OBJECT_STORES = ("s3", "gs", "az")
_EXPECTED = "an address like s3://bucket/prefix, or file:///folder"


def read_store_url(text: str) -> str:
    """Return the address without a final slash. Raise ValueError with the expected format."""
    try:
        parts = urlsplit(text)
    except ValueError:
        raise ValueError(_EXPECTED) from None
    is_bucket = parts.scheme in _OBJECT_STORES and parts.netloc and "@" not in parts.netloc
    is_folder = parts.scheme == "file" and not parts.netloc and parts.path.startswith("/")
    if not (is_bucket or is_folder) or parts.query or parts.fragment:
        raise ValueError(_EXPECTED)
    return text.rstrip("/")


def is_object_store(url: str) -> bool:
    """Return whether a valid address is that of an object store."""
    return urlsplit(url).scheme in _OBJECT_STORES


def find_folder(url: str) -> Path:
    """Return the folder of a valid address."""
    return Path(unquote(urlsplit(url).path))
