"""An attempt's page shows what it left, with links that open it."""

import hashlib
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from controlplane.contract.artifacts import path_of
from controlplane.models import Attempt
from controlplane.queries.attempts.artifacts import find_prefix
from controlplane.storage.folder import put_piece
from controlplane.storage.interface import AnnouncedFile
from tests.integration.admin.test_pages import address_of, page, words

pytestmark = pytest.mark.django_db


def test_attempt_page_links_to_its_artifacts(
    operator: Client, settings: Any, tmp_path: Path
) -> None:
    settings.CELLRUN = settings.CELLRUN.model_copy(update={"artifact_root": tmp_path})
    attempt = Attempt.objects.order_by("-uid")[0]
    prefix = find_prefix(attempt.uid)
    assert prefix is not None
    sha256 = hashlib.sha256(b"content").hexdigest()
    here = {"name": "a b", "size": 7, "sha256": sha256, "uri": path_of(str(attempt.uid), "a b")}
    there = {"name": "far", "size": 4096, "sha256": sha256, "uri": "s3://bucket/<far>"}
    file = AnnouncedFile(attempt.uid, prefix, "a b", 7, sha256)
    put_piece(file, offset=0, content=b"content", most=100)
    Attempt.objects.filter(pk=attempt.pk).update(details={"outputs": [there, here]})
    drawn = page(operator, address_of(Attempt, attempt))
    assert "s3://bucket/<far>" in words(unescape(drawn)) or "s3://bucket/" in drawn
    (link,) = re.findall(r'href="(/api/v1/store/artifacts/[^"]*)"', drawn)
    answer = Client().get(link)
    assert (answer.status_code, answer.getvalue()) == (200, b"content")
    assert Client().get(link.partition("?")[0]).status_code in (400, 403)
