"""Rows of lists are what django-unfold renders, at a lower cost."""

import re

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from controlplane.admin.lists import unfold
from controlplane.contract.states import TaskState as S
from tests.integration.admin.rows import make_installation
from tests.integration.admin.test_job_tasks import job_of

pytestmark = pytest.mark.django_db

_CELL = re.compile(r"<(?P<tag>td|th) class=.*?</(?P=tag)>", re.DOTALL)
_SECONDS = re.compile(r"\d+(\.\d+)? ?(ms|s)\b")  # durations of what runs grow


def cells_of(client: Client, address: str) -> list[str]:
    """Return the cells of a list without durations."""
    page = client.get(address, follow=True).content.decode()
    return [_SECONDS.sub("", found[0]) for found in _CELL.finditer(page)]


def test_cells_of_all_lists_are_those_of_unfold(monkeypatch: pytest.MonkeyPatch) -> None:
    make_installation()
    job_of([S.PENDING] * 30 + [S.FAILED, S.SUCCEEDED])
    client = Client()
    client.force_login(User.objects.create_superuser("olga", password="x"))
    names = [f"{it._meta.app_label}_{it._meta.model_name}" for it in admin.site._registry]
    lists = [reverse(f"admin:{name}_changelist") for name in names]
    for address in (path + query for path in lists for query in ("", "?q=a")):
        found = cells_of(client, address)
        with monkeypatch.context() as patch:
            patch.setattr(unfold, "_find_columns", lambda cl: None)
            assert found == cells_of(client, address), address
        assert found or "?q" in address, address
