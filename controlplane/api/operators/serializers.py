"""Define the documents of operators' resources: fields of their tables, and what is derived."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.serializers import CharField, DictField, IntegerField

from controlplane.api.openapi import ref
from controlplane.domain.scopes import ScopeKind
from controlplane.models import Callback, Cell, Delivery, Pool, Quota, Secret
from controlplane.queries.views import pools


def _texts(**texts: str) -> dict[str, Any]:
    return {field: {"help_text": text} for field, text in texts.items()}


@extend_schema_field({"type": "number"})
class _Amount(serializers.JSONField):
    """A whole number or a fraction, as it is."""


@extend_schema_field({"type": "array", "items": ref("AllowedMount")})
class _AllowedMounts(serializers.JSONField):
    """Files and folders as they are in the request."""


class CellSerializer(serializers.ModelSerializer[Cell]):
    """A cell; cpu in cores, memory_mib, disk_mib, gpu and named resources."""

    pool = CharField()
    labels = DictField(child=CharField())
    incarnation = CharField(allow_null=True)
    capacity = DictField(child=_Amount())
    free = DictField(child=_Amount())
    last_seen_at = serializers.DateTimeField(allow_null=True)
    clock_ahead_seconds = serializers.FloatField(
        allow_null=True, help_text="By its own estimate, of our clock; below 0, it is behind."
    )
    silent = serializers.BooleanField(help_text="No report for two heartbeats, and not yet lost.")

    class Meta:
        model = Cell
        fields = (
            "name",
            "state",
            "state_reason",
            "pool",
            "labels",
            "tags",
            "incarnation",
            "capacity",
            "free",
            "drivers",
            "task_types",
            "last_seen_at",
            "drain_deadline_at",
            "quarantined_until",
            "clock_ahead_seconds",
            "silent",
        )
        extra_kwargs = _texts(
            quarantined_until="QUARANTINED: when that ends by itself, if a time ends it.",
        )


class PoolSerializer(serializers.ModelSerializer[Pool]):
    """A pool, and whether a loss of many of its cells at once is held back."""

    tokens = DictField(child=IntegerField())
    allowed_mounts = _AllowedMounts()

    class Meta:
        model = Pool
        fields = pools.FIELDS


class QuotaUsageSerializer(serializers.Serializer[None]):
    """What someone has now, in all pools: what unreleased attempts hold, and tasks that wait."""

    resources = DictField(child=_Amount())
    running_tasks = IntegerField()
    running_jobs = IntegerField()
    pending_tasks = IntegerField()


class QuotaSerializer(serializers.ModelSerializer[Quota]):
    """What a user, project or domain may have at once, and has; null, and what is not named, is
    not limited. cpu in cores, memory_mib, disk_mib, gpu, named resources and tokens.
    """

    kind = serializers.ChoiceField([kind.value for kind in ScopeKind])
    name = CharField(help_text="A project's is domain/name.")
    resources = DictField(child=_Amount())
    usage = QuotaUsageSerializer()

    class Meta:
        model = Quota
        fields = (
            "kind",
            "name",
            "resources",
            "running_tasks",
            "running_jobs",
            "pending_tasks",
            "weight",
            "usage",
        )
        extra_kwargs = _texts(
            running_jobs="Jobs that hold something.",
        )


class StoredSecretSerializer(serializers.ModelSerializer[Secret]):
    """A secret without its value, which is never shown."""

    domain = CharField(source="project.domain.name")
    project = CharField(source="project.name")
    written_by = CharField(source="written_by.username", allow_null=True)

    class Meta:
        model = Secret
        fields = (
            "name",
            "domain",
            "project",
            "size",
            "version",
            "written_by",
            "created_at",
            "updated_at",
        )
        extra_kwargs = _texts(
            updated_at="When it was last written.",
        )


class DeliverySerializer(serializers.ModelSerializer[Delivery]):
    """One try to deliver a callback."""

    class Meta:
        model = Delivery
        fields = ("number", "began_at", "ended_at", "status", "error")
        extra_kwargs = _texts(
            status="Of the receiver's answer; null: it gave none.",
            error="Why it was none that delivers.",
        )


class CallbackDetailSerializer(serializers.ModelSerializer[Callback]):
    """The callback of a task's end, or (`task` is null) of the job's, and its progress."""

    job = IntegerField()
    task = IntegerField(allow_null=True)
    deliveries = DeliverySerializer(
        many=True, help_text="Its last tries, the newest first; at most 5."
    )

    class Meta:
        model = Callback
        fields = (
            "id",
            "job",
            "task",
            "url",
            "state",
            "tries",
            "due_at",
            "give_up_at",
            "created_at",
            "ended_at",
            "last_error",
            "deliveries",
        )
        extra_kwargs = _texts(
            due_at="When it is tried next, if it waits.",
            ended_at="When it was delivered, or abandoned.",
        )


class CallbackKeySerializer(serializers.Serializer[None]):
    """The key that signs the callbacks of the caller's own jobs and tasks."""

    key = CharField(help_text="32 bytes in hexadecimal.")
    algorithm = serializers.ChoiceField(["HMAC-SHA256"])
