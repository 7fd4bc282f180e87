"""Admin pages of the result cache: entries with their origin and use, and their eviction."""

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from controlplane import clock
from controlplane.admin.badges import (
    NOTHING,
    flag_badge,
    instant,
    list_link,
    page_link,
    shortened,
    with_note,
)
from controlplane.admin.base import (
    IndexedFilter,
    MonospaceText,
    ReadOnlyAdmin,
    Section,
    column,
    confirmed_action,
    loaded_column,
)
from controlplane.admin.fields import read_reason
from controlplane.admin.work.artifacts import PREVIEW, artifact_browser, artifact_preview
from controlplane.admin.work.attempts import items_of
from controlplane.commands.cache.operate import evict_entry
from controlplane.domain.cache.policy import CacheStatus
from controlplane.models import CacheEntry, Job, Task

_KEY_WIDTH = 40


class PresentFilter(IndexedFilter):
    """A filter by eviction: partial indexes find both choices."""

    title = "state"
    parameter_name = "present"
    options: ClassVar = {
        "yes": ("Present", Q(evicted_at=None)),
        "no": ("Evicted", Q(evicted_at__isnull=False)),
    }


@admin.register(CacheEntry)
class CacheEntryAdmin(ReadOnlyAdmin):
    """Entries of the result cache, newest first."""

    list_display = (
        "shown_key",
        "shown_state",
        "scope",
        "submitter",
        "origin",
        "hits",
        "size",
        "populated",
        "used",
    )
    sortable_by = ("populated",)  # an index serves this
    list_filter = (PresentFilter, "is_shared", "project")
    list_select_related = ("project__domain", "domain", "owner")
    search_fields = ("key",)
    search_help_text = "The beginning of a key"
    actions = ("evict_entries",)
    defer_fields: ClassVar = ("result", "outputs")

    def matching(self, term: str) -> Q:
        """Match the beginnings of keys."""
        return Q(key__startswith=term)

    def load(self, rows: list[Any]) -> dict[int, bool]:
        """Return for each entry whether the job that populated it exists."""
        wanted = {entry.job_id for entry in rows}
        found = set(Job.objects.visible().filter(pk__in=wanted).values_list("pk", flat=True))
        return {entry.pk: entry.job_id in found for entry in rows}

    shown_key = column(
        lambda entry: format_html(
            '<span class="cellrun-uid" title="{}">{}</span>',
            entry.key,
            shortened(entry.key, _KEY_WIDTH),
        ),
        "key",
    )
    scope = column(lambda entry: _scope(entry), "scope")
    submitter = column(lambda entry: _submitter(entry), "populated by")
    origin = loaded_column(
        lambda entry, exists: with_note(
            _origin(entry, exists),
            page_link("attempt", entry.attempt_uid, "attempt") if exists else "",
        ),
        "origin",
    )
    size = column(lambda entry: filesizeformat(entry.size_bytes), "size")
    populated = column(lambda entry: instant(entry.created_at), "populated", ordering="pk")
    used = column(lambda entry: instant(entry.used_at), "last use")
    shown_state = column(
        lambda entry: with_note(
            flag_badge("evicted" if entry.evicted_at else "present", good=not entry.evicted_at),
            entry.evicted_for,
        ),
        "state",
    )

    @confirmed_action(
        "Evict",
        title="Evict these entries?",
        text="The next identical tasks run again. Tasks that already have the result keep it, with"
        " its outputs.",
        button="Evict",
        done="Entries evicted",
        fields=("reason",),
    )
    def evict_entries(self, request: HttpRequest, entry: CacheEntry) -> None:
        """Evict an entry; the audit log records the actor and the reason."""
        reason, actor = read_reason(request), str(request.user)
        evict_entry(entry_id=entry.pk, actor=actor, reason=reason, now=clock.now())

    def page_actions(self, obj: CacheEntry) -> list[str]:
        """Return the eviction of a present entry."""
        return [] if obj.evicted_at else ["evict_entries"]

    def heading(self, obj: CacheEntry) -> dict[str, Any]:
        """Return its state and the reason of its eviction."""
        return {
            "title": f"Cache entry {obj.pk}",
            "badge": flag_badge(
                "evicted" if obj.evicted_at else "present", good=not obj.evicted_at
            ),
            "notes": [obj.evicted_for],
        }

    def facts(self, obj: CacheEntry) -> list[tuple[str, Any]]:
        """Return its key, its origin and its use."""
        exists = self.loaded(obj)
        uid: Any = obj.attempt_uid
        text, address = list_link("task", "tasks that use it", cache_entry_id__exact=obj.pk)
        return [
            ("key", obj.key),
            ("scope", _scope(obj)),
            ("project", f"{obj.project.domain.name}/{obj.project.name}"),
            ("populated by", _submitter(obj)),
            ("origin", _origin(obj, exists)),
            ("attempt", page_link("attempt", uid, uid) if exists else uid),
            ("populated", instant(obj.created_at)),
            ("hits", obj.hits),
            ("used by", format_html('<a class="cellrun-link" href="{}">{}</a>', address, text)),
            ("last use", instant(obj.used_at)),
            ("size", filesizeformat(obj.size_bytes)),
            ("evicted", instant(obj.evicted_at)),
            ("files", obj.prefix),
            ("SHA-256 of the manifest", obj.manifest_sha256),
        ]

    def sections_for(self, request: HttpRequest, obj: CacheEntry) -> list[Section]:
        """Return its result and its outputs; the query selects the output to preview."""
        sections = entry_sections(obj)
        name, items = request.GET.get(PREVIEW, ""), items_of(obj.attempt_uid, obj.outputs)
        if preview := artifact_preview(obj.attempt_uid, items, name):
            sections.append(preview)
        return sections


def entry_sections(entry: CacheEntry) -> list[Section]:
    """Return the result and the outputs of an entry, with previews on its page."""
    sections: list[Section] = []
    if entry.result:
        sections.append(MonospaceText("Result", text=entry.result))
    if items := items_of(entry.attempt_uid, entry.outputs):
        page = reverse("admin:controlplane_cacheentry_change", args=[entry.pk])
        sections.append(artifact_browser(entry.attempt_uid, items, page=page))
    return sections


def find_entry_of_task(task: Task) -> CacheEntry | None:
    """Return the entry from which a task has its result, or which it populated."""
    if task.cache_entry_id is not None:
        return CacheEntry.objects.filter(pk=task.cache_entry_id).first()
    if task.cache_status == CacheStatus.POPULATED and task.attempt_uid is not None:
        return CacheEntry.objects.filter(attempt_uid=task.attempt_uid).first()
    return None


def cache_facts(task: Task, entry: CacheEntry | None) -> list[tuple[str, Any]]:
    """Return the cache status of a task with a link to `entry`, and its key."""
    if task.cache_status == CacheStatus.DISABLED:
        return []
    status: SafeString | str = CacheStatus(task.cache_status).name
    if entry is not None:
        is_hit = task.cache_status == CacheStatus.HIT
        text = f"result of job {entry.job_id}, task {entry.task_id}" if is_hit else "its entry"
        status = format_html("{}: {}", status, page_link("cacheentry", entry.pk, text))
    return [("cache", status), ("cache key", task.cache_key)]


def _scope(entry: CacheEntry) -> str:
    if entry.is_shared:
        return f"domain {entry.domain.name}"
    return f"project {entry.project.domain.name}/{entry.project.name}"


def _submitter(entry: CacheEntry) -> str:
    return entry.owner.get_username() if entry.owner else NOTHING


def _origin(entry: CacheEntry, exists: bool) -> SafeString:
    job, task = f"job {entry.job_id}", f"task {entry.task_id}"
    if not exists:
        return format_html("{}, {} (deleted)", job, task)
    return format_html(
        "{}, {}",
        page_link("job", entry.job_id, job),
        page_link("task", entry.task_id, task),
    )
