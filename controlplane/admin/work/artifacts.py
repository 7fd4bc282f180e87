"""Browse the artifacts of an attempt: folders, downloads, and previews of text and images."""

import codecs
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote, urlencode
from uuid import UUID

from django.http import Http404, HttpResponse
from django.template.defaultfilters import filesizeformat
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from controlplane.admin.base import MonospaceText, Section
from controlplane.contract.artifacts import is_name
from controlplane.domain.errors import CellrunError
from controlplane.queries.attempts.artifacts import read_beginning

PREVIEW = "preview"
"""The anchor of the preview, and the query parameter that names the file."""
_TEXT_BYTES = 64 * 1024
_IMAGE_BYTES = 8 * 1024 * 1024  # held in memory by the web process
# More files are folded.
_OPEN_FILES = 50
# The first bytes decide, not the name: a browser runs no script in these formats.
_IMAGES = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF....WEBP", re.DOTALL),
}
# Control characters, and characters that change the direction of text.
_ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class ArtifactFolder:
    """The files directly in a folder, as rows of a table. `name`: empty for the uppermost one."""

    name: str
    extent: str
    rows: Sequence[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class ArtifactBrowser(Section):
    """The artifacts of an attempt by folder."""

    template: ClassVar[str] = "controlplane/section_artifacts.html"
    folders: Sequence[ArtifactFolder] = ()
    is_open: bool = True


@dataclass(frozen=True, slots=True)
class ImagePreview(Section):
    """An image, which the browser fetches from `address`."""

    template: ClassVar[str] = "controlplane/section_image.html"
    address: str = ""


def artifact_browser(
    uid: UUID, items: Sequence[Mapping[str, Any]], *, page: str | None = None
) -> ArtifactBrowser:
    """Return the section with an attempt's artifacts, as the API describes them.

    `page`: the address of the page with the previews, by default that of the attempt.
    """
    address = page or reverse("admin:controlplane_attempt_change", args=[uid])
    by_folder: dict[str, list[Mapping[str, Any]]] = {}
    for item in items:
        by_folder.setdefault(item["name"].rpartition("/")[0], []).append(item)
    folders = [
        ArtifactFolder(
            name, _extent(by_folder[name]), [_row(uid, it, address) for it in by_folder[name]]
        )
        for name in sorted(by_folder)
    ]
    is_open = len(items) <= _OPEN_FILES
    return ArtifactBrowser(f"Artifacts: {_extent(items)}", folders=folders, is_open=is_open)


def _extent(items: Sequence[Mapping[str, Any]]) -> str:
    files = "1 file" if len(items) == 1 else f"{len(items)} files"
    return f"{files}, {filesizeformat(sum(item['size'] for item in items))}"


def _row(uid: UUID, item: Mapping[str, Any], page: str) -> tuple[Any, ...]:
    """Return name, size, SHA-256, and the address or links to preview and download."""
    last = item["name"].rpartition("/")[2]
    return last, filesizeformat(item["size"]), item["sha256"], _links(uid, item, page)


def _links(uid: UUID, item: Mapping[str, Any], page: str) -> SafeString | str:
    if item["link"] is None or not is_name(item["name"]):
        return str(item["uri"])
    return format_html(
        '<a class="cellrun-link" href="{}?{}#{}">preview</a> '
        '<a class="cellrun-link" href="{}">download</a>',
        page,
        urlencode({PREVIEW: item["name"]}),
        PREVIEW,
        reverse("admin:controlplane_attempt_artifact", args=[uid, item["name"]]),
    )


def artifact_preview(uid: UUID, items: Iterable[Mapping[str, Any]], name: str) -> Section | None:
    """Return the preview of an artifact that is stored here; None if there is none of that name."""
    item = next((it for it in items if it["name"] == name and it["link"] and is_name(name)), None)
    if item is None:
        return None
    try:
        content = read_beginning(uid, name, _TEXT_BYTES)
    except CellrunError as fault:
        return MonospaceText(f"Preview of {name}", anchor=PREVIEW, text=str(fault))
    if image_type(content) and item["size"] <= _IMAGE_BYTES:
        address = reverse("admin:controlplane_attempt_image", args=[uid, name])
        return ImagePreview(f"Preview of {name}", anchor=PREVIEW, address=address)
    is_whole = item["size"] <= len(content)
    cut = "" if is_whole else f" (first {filesizeformat(_TEXT_BYTES)})"
    text = _readable(content, is_whole=is_whole)
    if text is None:
        cut, text = "", "This file is not text: download it."
    return MonospaceText(f"Preview of {name}{cut}", anchor=PREVIEW, text=text or "(empty)")


def image_response(uid: UUID, name: str) -> HttpResponse:
    """Return an image that a browser can display and nothing in it can run. Raise Http404."""
    try:
        content = read_beginning(uid, name, _IMAGE_BYTES + 1)
    except CellrunError as fault:
        raise Http404(str(fault)) from None
    kind = image_type(content)
    if kind is None or len(content) > _IMAGE_BYTES:
        raise Http404(f"{name} has no preview as an image")
    made = HttpResponse(content, content_type=kind)
    made["X-Content-Type-Options"] = "nosniff"
    made["Content-Security-Policy"] = "sandbox; default-src 'none'"
    made["Cross-Origin-Resource-Policy"] = "same-origin"
    made["Content-Disposition"] = f"inline; filename*=utf-8''{quote(name.rpartition('/')[2])}"
    return made


def image_type(content: bytes) -> str | None:
    """Return the media type of an image that pages display; None for all other content."""
    return next((kind for kind, magic in _IMAGES.items() if magic.match(content)), None)


def _readable(content: bytes, *, is_whole: bool) -> str | None:
    """Return the content as text with visible control characters; None if it is not text.

    It is UTF-16 if it has a byte order mark, otherwise UTF-8, or else Latin-1.
    """
    if content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        text = content.decode("utf-16", "replace")
    elif b"\0" in content:
        return None
    else:
        try:
            text = codecs.getincrementaldecoder("utf-8-sig")().decode(content, final=is_whole)
        except UnicodeDecodeError:
            text = content.decode("latin-1")
    return _ACTING.sub(_escape, text.replace("\r\n", "\n"))


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
