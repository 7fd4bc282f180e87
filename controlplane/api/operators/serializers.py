"""Define the documents of operators' resources: fields of tables, and derived ones."""

from typing import Any, ClassVar

from django.contrib.auth.models import User
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.serializers import BooleanField, CharField, DictField, IntegerField

from controlplane.api.openapi import ref
from controlplane.domain.roles import AUDITOR, PROJECT_ROLES, Role
from controlplane.domain.scopes import ScopeKind
from controlplane.models import (
    ApiToken,
    AuditLine,
    Callback,
    Cell,
    Delivery,
    Membership,
    Pool,
    Quota,
    Secret,
)
from controlplane.queries.tenancy.accounts import find_role
from controlplane.queries.views import pools
from controlplane.spec.limits import JobLimits


def _texts(**texts: str) -> dict[str, Any]:
    return {field: {"help_text": text} for field, text in texts.items()}


@extend_schema_field({"type": "number"})
class _Amount(serializers.JSONField):
    """A number, unchanged: a whole number or a fraction."""


@extend_schema_field({"type": "array", "items": ref("AllowedMount")})
class _AllowedMounts(serializers.JSONField):
    """Paths as in the request."""


@extend_schema_field(ref("JobLimits"))
class _JobLimits(serializers.JSONField):
    """All limits, with the defaults of those that the pool does not set."""

    def to_representation(self, value: Any) -> Any:
        """Return the limits in force; an invalid value of the row as it is stored."""
        try:
            return JobLimits.model_validate(value).model_dump()
        except ValueError:
            return value


class _Tokens(DictField):
    """Numbers of tokens by name."""

    child = IntegerField()

    def to_representation(self, value: Any) -> Any:
        """Return the numbers; an invalid value of the row as it is stored, to be corrected."""
        try:
            return super().to_representation(value)
        except (AttributeError, TypeError, ValueError):
            return value


@extend_schema_field({"type": ["object", "null"]})
class _ChangedFields(serializers.JSONField):
    """Values by field; null: there are none."""


class DrainSerializer(serializers.Serializer[None]):
    """The progress of a drain."""

    left = IntegerField(help_text="Attempts that still hold capacity of the cell.")
    total = IntegerField(help_text="Attempts that did so at the order of the drain.")
    longest_until = serializers.DateTimeField(
        allow_null=True,
        help_text="When the last of them has ended at the latest, by their time limits, the"
        " deadline of the drain and their grace periods; null: none is left, or one has no limit.",
    )
    empty_since = serializers.DateTimeField(
        allow_null=True,
        help_text="When the last of them released its capacity; null: some are left.",
    )


class CellSerializer(serializers.ModelSerializer[Cell]):
    """A cell. Resources: cpu in cores, memory_mib, disk_mib, gpu and named resources."""

    pool = CharField()
    labels = DictField(child=CharField(), help_text="All labels, with `node_labels`.")
    node_labels = DictField(
        child=CharField(), help_text="Labels below node/, which only operators set."
    )
    max_capacity = DictField(
        child=_Amount(),
        help_text="Maximum of each resource that the cell may offer; others are not limited.",
    )
    incarnation = CharField(allow_null=True)
    capacity = DictField(child=_Amount())
    free = DictField(child=_Amount())
    last_seen_at = serializers.DateTimeField(allow_null=True)
    clock_ahead_seconds = serializers.FloatField(
        allow_null=True,
        help_text="Seconds by which the cell's clock is ahead of the control plane's, as the cell"
        " estimates; negative: behind.",
    )
    drain = DrainSerializer(
        allow_null=True, help_text="The progress of a drain; null: the cell does not drain."
    )
    silent = serializers.BooleanField(
        help_text="Whether it sent no message for two heartbeats and is not LOST."
    )

    class Meta:
        model = Cell
        fields = (
            "name",
            "state",
            "state_reason",
            "pool",
            "labels",
            "tags",
            "node_labels",
            "incarnation",
            "capacity",
            "max_capacity",
            "fixed_tags",
            "free",
            "drivers",
            "task_types",
            "last_seen_at",
            "revoked_at",
            "drain_deadline_at",
            "drain",
            "quarantined_until",
            "clock_ahead_seconds",
            "silent",
            "mismatch",
        )
        extra_kwargs = _texts(
            mismatch="How what the cell reports differs from its enrolment; while it does, the cell"
            " gets no work. Empty: it does not.",
            revoked_at="LOST: when its key was revoked; null: it was not.",
            quarantined_until="QUARANTINED: when the quarantine ends; null: with its cause.",
        )


class PoolSerializer(serializers.ModelSerializer[Pool]):
    """The policy of a pool, and since when a mass loss of its cells is suppressed."""

    tokens = _Tokens()
    allowed_mounts = _AllowedMounts()
    job_limits = _JobLimits()

    class Meta:
        model = Pool
        fields = pools.FIELDS


class QuotaUsageSerializer(serializers.Serializer[None]):
    """The usage of a quota in all pools: held by unreleased attempts, waiting tasks, and files."""

    resources = DictField(child=_Amount())
    running_tasks = IntegerField()
    running_jobs = IntegerField()
    pending_tasks = IntegerField()
    stored_bytes = IntegerField(
        allow_null=True,
        help_text="Bytes that the store has for a project; null for users and domains.",
    )


class QuotaSerializer(serializers.ModelSerializer[Quota]):
    """Limits and usage of a user, project or domain over all pools; null, or a resource that is not
    listed: no limit. Resources: cpu in cores, memory_mib, disk_mib, gpu, named resources, tokens.
    """

    kind = serializers.ChoiceField([*(kind.value for kind in ScopeKind), "default"])
    name = CharField(
        help_text="Name of the user or domain; of a project, domain/name; of a default quota, the"
        " kind."
    )
    resources = DictField(child=_Amount())
    highest_band = CharField(help_text="The highest band of new jobs.")
    is_default = BooleanField(help_text="Whether these are the limits of the default quota.")
    usage = QuotaUsageSerializer(allow_null=True, help_text="Null for a default quota.")

    class Meta:
        model = Quota
        fields = (
            "kind",
            "name",
            "resources",
            "running_tasks",
            "running_jobs",
            "pending_tasks",
            "stored_bytes",
            "weight",
            "highest_band",
            "is_default",
            "usage",
        )
        extra_kwargs = _texts(
            running_tasks="Maximum number of tasks that hold capacity.",
            running_jobs="Maximum number of jobs with a task that holds capacity.",
            stored_bytes="Maximum of the bytes that the store has for a project.",
        )


class StoredSecretSerializer(serializers.ModelSerializer[Secret]):
    """A secret without its value."""

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
            "registry_server",
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
            status="HTTP status of the response; null: there was no response.",
            error="Why the try failed; empty if it delivered.",
        )


class CallbackDetailSerializer(serializers.ModelSerializer[Callback]):
    """The callback about the end of a task or, if `task` is null, of the job."""

    job = IntegerField()
    task = IntegerField(allow_null=True)
    deliveries = DeliverySerializer(many=True, help_text="Its last five tries, newest first.")

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
            due_at="Time of the next try, while it waits.",
            ended_at="When it was delivered or abandoned.",
        )


class CallbackKeySerializer(serializers.Serializer[None]):
    """The key that signs the callbacks of the caller's own jobs and tasks."""

    key = CharField(help_text="The secret in the format of Standard Webhooks: `whsec_…`.")


class TokenSerializer(serializers.ModelSerializer[ApiToken]):
    """An API token without its value."""

    user = CharField(source="user.username")
    role = serializers.ChoiceField([role.value for role in Role])
    projects = serializers.ListField(
        child=CharField(),
        allow_null=True,
        help_text="Projects, as domain/project, that it is limited to; null: all of its user.",
    )
    hidden_projects = serializers.IntegerField(
        help_text="How many more it is limited to, which the caller may not read."
    )

    class Meta:
        model = ApiToken
        fields: ClassVar[tuple[str, ...]] = (
            "id",
            "name",
            "user",
            "role",
            "projects",
            "hidden_projects",
            "prefix",
            "created_at",
            "expires_at",
            "last_used_at",
        )
        extra_kwargs = _texts(
            prefix="The first characters of its value.",
            expires_at="Null: never.",
            last_used_at="Exact to an hour; null: never used.",
        )


class AuditLineSerializer(serializers.ModelSerializer[AuditLine]):
    """A line of the audit log."""

    project = serializers.SerializerMethodField(help_text="domain/name; null: of no project.")
    domain = serializers.SerializerMethodField(help_text="Of the project, or of the subject.")
    before = _ChangedFields(help_text="Changed fields, as they were.")
    after = _ChangedFields(help_text="Changed fields, as they are now.")

    class Meta:
        model = AuditLine
        fields: ClassVar[tuple[str, ...]] = (
            "id",
            "at",
            "actor",
            "via",
            "token",
            "address",
            "request_id",
            "action",
            "subject",
            "text",
            "project",
            "domain",
            "before",
            "after",
        )

    def get_project(self, line: AuditLine) -> str | None:
        """Return the project with its domain."""
        project = line.project
        return None if project is None else f"{project.domain.name}/{project.name}"

    def get_domain(self, line: AuditLine) -> str | None:
        """Return the domain."""
        found = line.domain or (line.project and line.project.domain)
        return found.name if found else None


class GrantedTokenSerializer(TokenSerializer):
    """A new API token. `token`: its value, which cannot be read again."""

    token = CharField()

    class Meta(TokenSerializer.Meta):
        fields: ClassVar[tuple[str, ...]] = (*TokenSerializer.Meta.fields, "token")


class ProjectHoldSerializer(serializers.Serializer[None]):
    """An open hold: no waiting task is placed until its release."""

    by = CharField()
    reason = CharField()
    since = serializers.DateTimeField()
    role = serializers.ChoiceField(
        [role.value for role in Role],
        help_text="That of its holder on the project; a lower one cannot release it.",
    )
    project = CharField()


class ProjectSerializer(serializers.Serializer[None]):
    """A project. `role`: that of the caller, limited by the presented token."""

    name = CharField(help_text="domain/project.")
    domain = CharField()
    project = CharField()
    role = serializers.ChoiceField([role.value for role in Role])
    archived = serializers.BooleanField(help_text="Whether it accepts no new jobs and secrets.")
    archived_at = serializers.DateTimeField(allow_null=True)
    stored_bytes = IntegerField(help_text="Bytes that the store has for the project.")
    stored_bytes_limit = IntegerField(
        allow_null=True, help_text="Limit of its quota, or of the default quota; null: none."
    )
    hold = ProjectHoldSerializer(allow_null=True, help_text="The open hold of all its jobs.")


class MemberSerializer(serializers.ModelSerializer[Membership]):
    """A user or group with a role."""

    kind = serializers.SerializerMethodField()
    name = serializers.SerializerMethodField()
    role = serializers.ChoiceField([*PROJECT_ROLES, AUDITOR])

    class Meta:
        model = Membership
        fields = ("kind", "name", "role", "created_at")

    @extend_schema_field(serializers.ChoiceField(["user", "group"]))
    def get_kind(self, found: Membership) -> str:
        """Return which of the two it is."""
        return "group" if found.user is None else "user"

    def get_name(self, found: Membership) -> str:
        """Return the name of the user or group."""
        return str(found.user or found.group)


class ServiceAccountSerializer(serializers.Serializer[None]):
    """A user for a machine, without a password, of one project."""

    name = CharField()
    role = serializers.ChoiceField(
        [*PROJECT_ROLES], allow_null=True, help_text="On its project; null: none."
    )
    created_at = serializers.DateTimeField()


class UserSerializer(serializers.ModelSerializer[User]):
    """A user. `role`: the most that the user's tokens permit."""

    name = CharField(source="username")
    active = serializers.BooleanField(source="is_active")
    role = serializers.SerializerMethodField()

    class Meta:
        model = User
        fields = ("name", "active", "role", "date_joined", "last_login")
        extra_kwargs = _texts(last_login="Of the admin; null: never.")

    @extend_schema_field(serializers.ChoiceField([role.value for role in Role]))
    def get_role(self, user: User) -> str:
        """Return the user's role."""
        return find_role(user).value


class HeldRoleSerializer(serializers.Serializer[None]):
    """A role of the caller on a project or on all projects of a domain."""

    domain = CharField()
    project = CharField(allow_null=True, help_text="Null: all projects of the domain.")
    role = serializers.ChoiceField([role.value for role in Role])


class WhoamiSerializer(serializers.Serializer[None]):
    """The caller. `role`: the most that the presented token permits."""

    user = CharField()
    role = serializers.ChoiceField([role.value for role in Role])
    installation = serializers.ChoiceField(
        [Role.OPERATOR.value, AUDITOR],
        allow_null=True,
        help_text="The role on the installation; null: none.",
    )
    roles = HeldRoleSerializer(
        many=True, help_text="The roles on domains and projects, limited by the token."
    )
    token = TokenSerializer()
