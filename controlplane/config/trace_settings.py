"""Formats of the settings for traces."""

from urllib.parse import unquote, urlsplit

_URL = "an address like https://tracing.example.org/trace/{trace_id}"


def read_headers(text: str) -> tuple[tuple[str, str], ...]:
    """Return the headers of `OTEL_EXPORTER_OTLP_HEADERS`. Raise ValueError with the format."""
    pairs = [item.partition("=") for item in text.split(",")]
    found = tuple((name.strip().lower(), unquote(value.strip())) for name, _, value in pairs)
    if not text.isprintable() or not all(name and value for name, value in found):
        raise ValueError("pairs like authorization=Bearer%20abc, separated by commas")
    return found


def read_trace_url(text: str) -> str:
    """Return the address of traces with its placeholder. Raise ValueError with the format."""
    try:
        parts = urlsplit(text)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_valid = is_valid and parts.port != 0 and text.isprintable() and " " not in text
    except ValueError:  # an invalid port, or an incomplete IPv6 address
        is_valid = False
    if not is_valid or text.count("{trace_id}") != 1:
        raise ValueError(_URL)
    return text
