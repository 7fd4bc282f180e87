"""The result cache: entries, and reservations of keys by tasks that run."""

from django.conf import settings
from django.db import models
from django.db.models import Q


class CacheEntry(models.Model):
    """Result and outputs of a succeeded task, for identical ones.

    An evicted entry stays as long as a task refers to it: the files of its attempt belong to it.
    """

    identity = models.UUIDField(help_text="The digest of scope and key.")
    domain = models.ForeignKey("Domain", on_delete=models.PROTECT, related_name="+")
    project = models.ForeignKey(
        "Project", on_delete=models.PROTECT, related_name="+", help_text="Of the populating task."
    )
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.SET_NULL,
        null=True,
        related_name="+",
        help_text="The submitter of the populating task.",
    )
    is_shared = models.BooleanField(default=False, help_text="Its scope is the whole domain.")
    key = models.CharField(max_length=330)
    job_id = models.BigIntegerField(help_text="The job that populated it.")
    task_id = models.BigIntegerField()
    attempt_uid = models.UUIDField()
    prefix = models.CharField(max_length=512, help_text="Of the attempt's files in the store.")
    manifest_sha256 = models.CharField(max_length=64)
    result = models.TextField(null=True, blank=True)
    outputs = models.JSONField(default=list, help_text="Stored files: name, size, sha256, uri.")
    size_bytes = models.BigIntegerField(default=0)
    hits = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField()
    used_at = models.DateTimeField(help_text="Its population or its last hit.")
    evicted_at = models.DateTimeField(null=True, blank=True)
    evicted_for = models.CharField(max_length=255, default="", blank=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("identity",),
                condition=Q(evicted_at=None),
                name="cache_entry_unique_in_scope",
            ),
        )
        indexes = (
            models.Index(fields=("attempt_uid",), name="cache_entry_of_attempt"),
            models.Index(
                fields=("used_at",), name="cache_entry_by_use", condition=Q(evicted_at=None)
            ),
            models.Index(
                fields=("project", "id"),
                name="cache_entry_of_project",
                condition=Q(evicted_at=None, is_shared=False),
            ),
            models.Index(
                fields=("domain", "id"),
                name="cache_entry_of_domain",
                condition=Q(evicted_at=None, is_shared=True),
            ),
            models.Index(
                fields=("key",), name="cache_entry_by_key", opclasses=("varchar_pattern_ops",)
            ),
            models.Index(
                fields=("evicted_at",), name="cache_entry_evicted", condition=~Q(evicted_at=None)
            ),
        )
        verbose_name_plural = "cache entries"

    def __str__(self) -> str:
        return f"entry {self.key}"  # pages begin it with a capital, which a key may not have


class CacheReservation(models.Model):
    """The task that last ran for a key of a serializing group, since its placement.

    The reservation is in force while this attempt is active, or its result is being stored; no
    event has to release it.
    """

    identity = models.UUIDField(primary_key=True)
    task_id = models.BigIntegerField()
    attempt_uid = models.UUIDField()
    reserved_at = models.DateTimeField()

    class Meta:
        indexes = (models.Index(fields=("reserved_at",), name="cache_reservation_by_age"),)

    def __str__(self) -> str:
        return str(self.identity)
