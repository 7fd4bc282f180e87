"""Pages of attempts and tasks show artifacts; previews cannot run anything in the browser."""

import hashlib
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from controlplane import clock
from controlplane.contract.artifacts import path_of
from controlplane.models import Attempt, Job, Task
from controlplane.queries.attempts.artifacts import find_prefix
from controlplane.storage.folder import put_piece
from controlplane.storage.interface import AnnouncedFile
from tests.harness.store_limits import reserve_nothing
from tests.integration.admin.test_pages import address_of, page, words

pytestmark = pytest.mark.django_db

PNG = b"\x89PNG\r\n\x1a\n<script>alert(1)</script>"
SCRIPT = b"<script>alert(document.domain)</script>"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>'


def artifact(attempt: Attempt, name: str, content: bytes, uri: str = "") -> dict[str, Any]:
    """The entry of an artifact, whose content is stored unless it is elsewhere."""
    sha256 = hashlib.sha256(content).hexdigest()
    if not uri:
        prefix = find_prefix(attempt.uid)
        assert prefix is not None
        file = AnnouncedFile(attempt.uid, prefix, name, len(content), sha256)
        put_piece(file, offset=0, content=content, most=lambda: 1 << 30, reserve=reserve_nothing)
    uri = uri or path_of(str(attempt.uid), name)
    return {"name": name, "size": len(content), "sha256": sha256, "uri": uri}


def leave(attempt: Attempt, **contents: bytes) -> None:
    """The attempt left these; a name's `__` stands for /."""
    items = [artifact(attempt, name.replace("__", "/"), body) for name, body in contents.items()]
    Attempt.objects.filter(pk=attempt.pk).update(details={"outputs": items})


@pytest.fixture
def attempt(installation: None, settings: Any, tmp_path: Path) -> Attempt:
    settings.CELLRUN = settings.CELLRUN.model_copy(update={"artifact_root": tmp_path})
    return Attempt.objects.order_by("-uid")[0]


def source(browser: Client, address: str) -> str:
    """The page as sent, with its escapes."""
    answer = browser.get(address)
    assert answer.status_code == 200
    return answer.content.decode()


def preview(browser: Client, attempt: Attempt, name: str) -> str:
    """The preview section as sent."""
    answer = browser.get(address_of(Attempt, attempt), {"preview": name})
    assert answer.status_code == 200
    found = re.search(r'id="preview">(.*?)</section>', answer.content.decode(), re.DOTALL)
    return found[1].strip() if found else ""


def shown_text(browser: Client, attempt: Attempt, name: str) -> str:
    found = re.search(r"<pre[^>]*>(.*)</pre>", preview(browser, attempt, name), re.DOTALL)
    assert found
    return unescape(found[1])


# ----------------------------------------------------------------------------- the browser


def test_attempt_page_lists_folders_sizes_and_checksums(operator: Client, attempt: Attempt) -> None:
    far = artifact(attempt, "far", b"x" * 4096, uri="s3://bucket/<far>")
    here = [
        artifact(attempt, "plots/deep/b", b"bb"),
        artifact(attempt, "plots/a", b"a"),
        artifact(attempt, "model", b"m" * 2048),
    ]
    Attempt.objects.filter(pk=attempt.pk).update(details={"outputs": [far, *here]})
    drawn = source(operator, address_of(Attempt, attempt))
    section = drawn[drawn.index("<h2>Artifacts") : drawn.index("<h2>Output")]
    text = words(unescape(section)).replace("\xa0", " ")
    assert text.startswith("Artifacts: 4 files, 6.0 KB")
    folders = [words(each) for each in re.findall(r"<summary>(.*?)</summary>", section)]
    assert [each.split()[0] for each in folders] == ["/", "plots/", "plots/deep/"]
    for item in here:
        assert item["sha256"] in section
    assert "s3://bucket/&lt;far&gt;" in section
    assert section.count(">download</a>") == section.count(">preview</a>") == 3


def test_download_redirects_to_a_link_that_serves_a_file(
    operator: Client, attempt: Attempt
) -> None:
    Attempt.objects.filter(pk=attempt.pk).update(
        details={"outputs": [artifact(attempt, "a b/50%?#.html", SCRIPT)]}
    )
    (link,) = re.findall(r'href="([^"]*)">download', source(operator, address_of(Attempt, attempt)))
    answer = operator.get(unescape(link))
    assert answer.status_code == 302
    served = Client().get(answer["Location"])
    assert (served.status_code, served.getvalue()) == (200, SCRIPT)
    assert served["Content-Type"] == "application/octet-stream"
    assert served["Content-Disposition"].startswith("attachment;")
    assert served["X-Content-Type-Options"] == "nosniff"
    assert served["Content-Security-Policy"] == "sandbox; default-src 'none'"
    assert Client().get(answer["Location"].partition("?")[0]).status_code in (400, 403)


def test_task_page_shows_the_artifacts_of_the_task(operator: Client, attempt: Attempt) -> None:
    leave(attempt, model=b"m")
    drawn = page(operator, address_of(Task, attempt.task))
    assert "Artifacts: 1 file" in drawn
    assert f"/attempt/{attempt.pk}/change/?preview=model#preview" in drawn
    assert f"/attempt/{attempt.pk}/artifacts/model" in drawn


def test_many_files_are_folded_and_deep_folders_are_drawn(
    operator: Client, attempt: Attempt
) -> None:
    deep = "/".join("d" * 120)
    leave(attempt, **{f"f{n}": b"x" for n in range(60)}, **{f"{deep}/x": b"x"})
    drawn = source(operator, address_of(Attempt, attempt))
    assert '<details class="cellrun-folder">' in drawn
    assert f"{deep}/ <small>" in drawn


def test_names_that_no_url_can_hold_have_no_links(operator: Client, attempt: Attempt) -> None:
    names = ["", "/", "a\nb", "../x", "<b>"]
    items = [
        {"name": name, "size": 1, "sha256": "0" * 64, "uri": path_of(str(attempt.uid), name)}
        for name in names
    ]
    Attempt.objects.filter(pk=attempt.pk).update(details={"outputs": items})
    drawn = source(operator, address_of(Attempt, attempt))
    assert drawn.count(">download</a>") == 1
    assert "<td><b></td>" not in drawn
    for name in names:
        preview(operator, attempt, name)


# ----------------------------------------------------------------------------- text


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (SCRIPT, SCRIPT.decode()),
        (SVG, SVG.decode()),
        (b"\x1b]52;c;x\x07 \x7f\r\nnext", "\\x1b]52;c;x\\x07 \\x7f\nnext"),
        ("\u202egnp.exe \x9b ü 漢".encode(), "\\u202egnp.exe \\x9b ü 漢"),
        ("ü\u20ac".encode("utf-16"), "ü\u20ac"),
        (b"\xef\xbb\xbfbom", "bom"),
        ("caf\xe9".encode("latin-1"), "caf\xe9"),
        (b"", "(empty)"),
        (b"\x7fELF\0\0", "This file is not text: download it."),
        (b"GIF8", "GIF8"),
    ],
)
def test_preview_of_text_is_escaped(
    operator: Client, attempt: Attempt, content: bytes, shown: str
) -> None:
    leave(attempt, it=content)
    assert shown_text(operator, attempt, "it") == shown
    drawn = preview(operator, attempt, "it")
    assert "<script" not in drawn
    assert "<svg" not in drawn
    assert "<img" not in drawn


def test_preview_shows_the_first_64_kib(operator: Client, attempt: Attempt) -> None:
    leave(attempt, it="ü".encode() * 32 * 1024 + b"end", odd=b"x" + "ü".encode() * 40_000)
    assert shown_text(operator, attempt, "it") == "ü" * 32 * 1024
    assert shown_text(operator, attempt, "odd") == "x" + "ü" * 32_767, "no half character"
    assert "(first 64.0\xa0KB)" in unescape(preview(operator, attempt, "odd"))


def test_preview_of_a_file_that_is_gone_has_the_reason(
    operator: Client, attempt: Attempt, tmp_path: Path
) -> None:
    leave(attempt, it=b"x")
    for path in tmp_path.rglob("it"):
        path.unlink()
    assert "no longer stored" in shown_text(operator, attempt, "it")
    assert preview(operator, attempt, "none") == ""


# ----------------------------------------------------------------------------- images


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0" + SCRIPT, "image/jpeg"),
        (b"GIF89a" + SCRIPT, "image/gif"),
        (b"GIF87a", "image/gif"),
        (b"RIFF\n\0\0\0WEBPVP8 ", "image/webp"),
    ],
)
def test_image_is_served_by_its_content_and_cannot_run(
    operator: Client, attempt: Attempt, content: bytes, kind: str
) -> None:
    leave(attempt, **{"it.html": content})
    (address,) = re.findall(r'<img src="([^"]*)"', preview(operator, attempt, "it.html"))
    answer = operator.get(unescape(address))
    assert (answer.status_code, answer.content) == (200, content)
    assert answer["Content-Type"] == kind
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["Content-Security-Policy"] == "sandbox; default-src 'none'"
    assert answer["Content-Disposition"].startswith("inline;")
    assert answer["X-Frame-Options"] == "DENY"


@pytest.mark.parametrize(
    "content", [SVG, SCRIPT, b"", b"RIFF\0\0\0\0AVI ", b" " + PNG, b"BM", b"\0"]
)
def test_other_content_is_never_served_inline(
    operator: Client, attempt: Attempt, content: bytes
) -> None:
    leave(attempt, **{"it.png": content})
    assert "<img" not in preview(operator, attempt, "it.png")
    address = f"/admin/controlplane/attempt/{attempt.pk}/images/it.png"
    assert operator.get(address).status_code == 404


def test_large_image_has_no_preview(
    operator: Client, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.admin.work.artifacts._IMAGE_BYTES", len(PNG))
    leave(attempt, fits=PNG, large=PNG + b"x")
    address = f"/admin/controlplane/attempt/{attempt.pk}/images/"
    assert [operator.get(address + name).status_code for name in ("fits", "large")] == [200, 404]
    assert "<img" not in preview(operator, attempt, "large")


# ----------------------------------------------------------------------------- permissions


def test_artifacts_require_the_permission_to_view_attempts(
    operator: Client, onlooker: Client, attempt: Attempt
) -> None:
    leave(attempt, it=PNG)
    base = f"/admin/controlplane/attempt/{attempt.pk}"
    paths = [f"{base}/artifacts/it", f"{base}/images/it"]
    assert [onlooker.get(path).status_code for path in paths] == [302, 200]
    guest = Client()
    guest.force_login(User.objects.create_user("gwen", is_staff=True))
    assert [guest.get(path).status_code for path in paths] == [403, 403]
    for path in paths:
        assert "/login/" in Client().get(path)["Location"]
    assert [operator.get(path + "x").status_code for path in paths] == [404, 404]
    other = f"/admin/controlplane/attempt/{Job.objects.all()[0].pk}/artifacts/it"
    assert operator.get(other).status_code in (302, 404)


def test_artifacts_of_a_deleted_job_are_not_served(operator: Client, attempt: Attempt) -> None:
    leave(attempt, it=PNG)
    now = clock.now()
    Attempt.objects.filter(pk=attempt.pk).update(released_at=now)
    Job.objects.filter(pk=attempt.job_id).update(deleted_at=now)
    base = f"/admin/controlplane/attempt/{attempt.pk}"
    for path in (f"{base}/artifacts/it", f"{base}/images/it"):
        assert operator.get(path).status_code == 404
