"""The pages of cache entries, their eviction, and the use of the cache on a task's page."""

import re
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from controlplane.contract.states import TaskState
from controlplane.domain.cache.policy import CacheStatus
from controlplane.models import AuditLine, CacheEntry, Job, Task
from tests.integration.admin.rows import NOW, make_cache_entry
from tests.integration.admin.test_actions import act, text_of
from tests.integration.admin.test_pages import address_of, page, words

pytestmark = pytest.mark.django_db(transaction=True)

ENTRIES = "/admin/controlplane/cacheentry/"


def origin() -> Task:
    return Task.objects.get(state=TaskState.SUCCEEDED)


def test_list_shows_origin_and_use_of_entries(operator: Client) -> None:
    task = origin()
    html = page(operator, ENTRIES)
    shown = words(html).replace("\xa0", " ")
    for text in ("model:2031@1", "project default/default", "ann", "3", "1.5 KB", "present"):
        assert text in shown
    assert f"job {task.job_id} , task {task.pk}" in shown
    assert f"/job/{task.job_id}/change/" in html
    assert f"/task/{task.pk}/change/" in html
    assert f"/attempt/{task.attempt_uid}/change/" in html


def test_entry_page_shows_result_outputs_and_origin(operator: Client) -> None:
    entry = CacheEntry.objects.get()
    html = page(operator, address_of(CacheEntry, entry))
    shown = words(html)
    for text in ("model:2031@1", "42 words", "model", str(entry.attempt_uid), "populated by ann"):
        assert text in shown
    assert f"/admin/controlplane/task/?cache_entry_id__exact={entry.pk}" in html


def test_entry_outlives_its_job_without_dead_links(operator: Client) -> None:
    entry = CacheEntry.objects.get()
    Job.objects.update(deleted_at=NOW)
    for address in (ENTRIES, address_of(CacheEntry, entry)):
        html = page(operator, address)
        assert f"job {entry.job_id}, task {entry.task_id} (deleted)" in words(html)
        assert f"/task/{entry.task_id}/change/" not in html
        assert f"/attempt/{entry.attempt_uid}/change/" not in html


def test_output_of_a_deleted_job_is_previewed_on_the_page_of_its_entry(
    operator: Client, settings: Any, tmp_path: Path
) -> None:
    settings.CELLRUN = settings.CELLRUN.model_copy(update={"artifact_root": tmp_path})
    entry = CacheEntry.objects.get()
    Job.objects.update(deleted_at=NOW)
    html = page(operator, address_of(CacheEntry, entry))
    [link] = re.findall(r'href="([^"]*preview=model#preview)"', html)
    assert link.startswith(address_of(CacheEntry, entry))
    assert "Preview of model" in words(page(operator, link))


def test_search_finds_the_beginning_of_a_key(operator: Client) -> None:
    make_cache_entry(origin(), key="model:2031@2")
    make_cache_entry(origin(), key="auto-1-00")
    for term, count in (("model:2031", "2 cache entries"), ("model:2031@2", "1 cache entry")):
        assert count in words(page(operator, f"{ENTRIES}?q={term}"))
    for term in ("odel", "%25", "model_2031"):
        assert "0 cache entries" in words(page(operator, f"{ENTRIES}?q={term}"))


def test_eviction_requires_confirmation_and_is_audited(operator: Client) -> None:
    entry = CacheEntry.objects.get()
    confirmation = text_of(act(operator, ENTRIES, "evict_entries", entry.pk))
    assert "Evict these entries?" in confirmation
    entry.refresh_from_db()
    assert entry.evicted_at is None
    answers = {"confirmed": "yes", "reason": "wrong model"}
    done = text_of(act(operator, ENTRIES, "evict_entries", entry.pk, **answers))
    assert "Entries evicted: 1" in done
    entry.refresh_from_db()
    assert entry.evicted_at is not None
    assert entry.evicted_for == "evicted by olga; wrong model"
    line = AuditLine.objects.latest("id")
    assert (line.actor, line.action, line.subject) == (
        "olga",
        "evict.cache_entry",
        "cache entry model:2031@1",
    )
    shown = text_of(operator.get(address_of(CacheEntry, entry)))
    assert "evicted by olga; wrong model" in shown
    assert "Evict …" not in shown
    assert "0 cache entries" in words(page(operator, f"{ENTRIES}?present=yes"))


def test_eviction_is_refused_to_read_only_users(onlooker: Client) -> None:
    entry = CacheEntry.objects.get()
    assert "Evict …" not in text_of(onlooker.get(address_of(CacheEntry, entry)))
    act(onlooker, ENTRIES, "evict_entries", entry.pk, confirmed="yes")
    entry.refresh_from_db()
    assert entry.evicted_at is None


def test_task_page_links_to_the_entry(operator: Client) -> None:
    entry, task = CacheEntry.objects.get(), origin()
    Task.objects.filter(pk=task.pk).update(
        cache_status=CacheStatus.POPULATED, cache_key="model:2031@1"
    )
    html = page(operator, address_of(Task, task))
    assert "POPULATED: its entry" in words(html)
    assert "model:2031@1" in words(html)
    assert address_of(CacheEntry, entry) in html


def test_page_of_a_hit_shows_result_and_outputs_of_the_entry(operator: Client) -> None:
    entry = CacheEntry.objects.get()
    hit = Task.objects.get(state=TaskState.PENDING)
    Task.objects.filter(pk=hit.pk).update(
        state=TaskState.SUCCEEDED,
        finished_at=NOW,
        cache_status=CacheStatus.HIT,
        cache_entry_id=entry.pk,
    )
    html = page(operator, address_of(Task, hit))
    shown = words(html)
    assert f"HIT: result of job {entry.job_id}, task {entry.task_id}" in shown
    assert "no attempt yet" not in shown
    assert "42 words" in shown
    assert "model" in shown
    assert address_of(CacheEntry, entry) in html
    assert address_of(CacheEntry, entry) in page(operator, address_of(Job, hit.job))


def test_task_without_the_cache_does_not_mention_it(operator: Client) -> None:
    task = Task.objects.get(state=TaskState.FAILED)
    assert "DISABLED" not in page(operator, address_of(Task, task))
