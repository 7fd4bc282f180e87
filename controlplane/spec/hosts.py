"""Distinguish IP addresses in URLs, in any spelling, from host names."""

import ipaddress

from controlplane.contract.addresses import Address

_PARTS_MAX = 4  # parts of an IPv4 address, as in inet_aton


def read_address(host: str) -> Address | None:
    """Parse `host` in any spelling that resolvers accept; return None if it is a name."""
    bare = host.partition("%")[0]
    try:
        return ipaddress.ip_address(bare)
    except ValueError:
        return _read_legacy(bare)


def is_malformed_address(host: str) -> bool:
    """Return whether `host` consists of numbers only, as no name does, but is not an address."""
    parts = host.rstrip(".").split(".")
    are_numbers = all(part.isdigit() or _read_number(part) is not None for part in parts)
    return are_numbers and read_address(host) is None


def _read_legacy(text: str) -> ipaddress.IPv4Address | None:
    """Parse an address in decimal, hexadecimal, octal or short form, like inet_aton."""
    parts = text.rstrip(".").split(".")
    numbers = [_read_number(part) for part in parts]
    if len(parts) > _PARTS_MAX or any(number is None for number in numbers):
        return None
    *leading, last = [number for number in numbers if number is not None]
    if any(number > 255 for number in leading) or last >= 256 ** (_PARTS_MAX + 1 - len(parts)):
        return None
    value = last
    for position, number in enumerate(leading):
        value += number << (8 * (_PARTS_MAX - 1 - position))
    return ipaddress.IPv4Address(value)


def _read_number(text: str) -> int | None:
    if not text.isascii() or not text.isalnum():
        return None
    try:
        if text[:2] in ("0x", "0X"):
            return int(text[2:] or "0", 16)
        return int(text, 8 if text.startswith("0") else 10)
    except ValueError:
        return None
