"""Pools (a policy for a set of cells), quotas (limits of a user, project or domain), shapes."""

import ipaddress
import re
from collections.abc import Iterable
from typing import Any

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q

from controlplane import plugins
from controlplane.domain.jobs.bands import default_band
from controlplane.domain.placement.model.policy import DEFAULT_VALIDATORS
from controlplane.domain.scopes import ScopeKind
from controlplane.domain.state.states import Band, MassLoss
from controlplane.spec import InvalidSpec
from controlplane.spec.limits import MAX_LIMIT, JobLimits
from controlplane.spec.parsing import parse_part

_CAPABILITY = re.compile(r"(?!CAP_)[A-Z][A-Z_]{1,31}", re.ASCII)


def _default_validators() -> list[str]:
    return list(DEFAULT_VALIDATORS)


def check_amounts(amounts: object) -> None:
    """Check that `amounts` is {name: whole number, zero or more}. Raise ValidationError."""
    if not isinstance(amounts, dict):
        raise ValidationError("must be a mapping of names to whole numbers, such as {licence: 4}")
    for name, amount in amounts.items():
        if isinstance(amount, bool) or not isinstance(amount, int) or not 0 <= amount <= MAX_LIMIT:
            raise ValidationError(f"{name}: must be a whole number from 0 to {MAX_LIMIT}")


def check_allowed_mounts(allowed: object) -> None:
    """Check that `allowed` is a list of {path: absolute, read_only: bool}."""
    if not isinstance(allowed, list):
        raise ValidationError("must be a list of {path, read_only}, such as [{path: /srv}]")
    for item in allowed:
        if not isinstance(item, dict) or set(item) - {"path", "read_only"}:
            raise ValidationError("must be a list of {path, read_only}, such as [{path: /srv}]")
        path = item.get("path")
        if not isinstance(path, str) or not path.startswith("/") or ".." in path.split("/"):
            raise ValidationError(f"{path!r} is not an absolute path without ..")
        if not isinstance(item.get("read_only", True), bool):
            raise ValidationError("read_only must be true or false")


def check_capabilities(names: object) -> None:
    """Check that `names` are capabilities, without CAP_. Raise ValidationError.

    ALL is refused: it includes capabilities that are equivalent to root on the host, which only
    `privileged_allowed` grants.
    """
    for name in names if isinstance(names, list) else ():
        if name == "ALL" or not _CAPABILITY.fullmatch(name):
            raise ValidationError(f"{name} is not the name of a capability, such as NET_RAW")


def check_job_limits(limits: object) -> None:
    """Check that `limits` are those of `spec.limits.JobLimits`. Raise ValidationError."""
    try:
        parse_part(JobLimits, limits)
    except InvalidSpec as error:
        raise ValidationError([str(fault) for fault in error.faults]) from None


def check_networks(networks: Iterable[str]) -> None:
    """Check that each of `networks` is a network such as 10.0.0.0/8. Raise ValidationError."""
    for text in networks:
        try:
            ipaddress.ip_network(text)
        except ValueError as error:
            raise ValidationError(f"{text} is not a network, such as 10.0.0.0/8: {error}") from None


class Pool(models.Model):
    """A named set of cells with its policy (Backend.AI: scaling group; Volcano: queue)."""

    name = models.CharField(max_length=63, unique=True)
    sequencer = models.CharField(
        max_length=63, default="fifo", help_text="The order in which tasks of a band are tried."
    )
    selector = models.CharField(
        max_length=63,
        default="dispersed",
        help_text="Selects the cell for a task among those with enough capacity.",
    )
    validators = ArrayField(
        models.CharField(max_length=63),
        default=_default_validators,
        blank=True,
        help_text="Checks that a task must pass before it is tried.",
    )
    strict_fifo = models.BooleanField(
        default=False, help_text="Stop at the first task that does not fit; otherwise skip it."
    )
    preemption = models.BooleanField(
        default=True, help_text="Whether tasks of a higher band may evict tasks of a lower one."
    )
    pending_timeout_seconds = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="Seconds that a task may wait before it ends UNSCHEDULABLE, in jobs"
        " without a scheduling timeout of their own; empty: no limit.",
    )
    pull_timeout_seconds = models.PositiveIntegerField(
        default=1800, help_text="Seconds after which the pull of an image is a system failure."
    )
    create_timeout_seconds = models.PositiveIntegerField(
        default=300,
        help_text="Seconds after which the creation of a container is a system failure.",
    )
    max_building_per_cell = models.PositiveIntegerField(
        null=True,
        blank=True,
        default=8,
        validators=[MinValueValidator(1)],
        help_text="Maximum number of containers that a cell prepares at the same time;"
        " empty: no limit.",
    )
    starvation_seconds = models.PositiveIntegerField(
        null=True,
        blank=True,
        default=300,
        help_text="Seconds after which a waiting task reserves capacity, so that"
        " smaller tasks do not delay it further; empty: never.",
    )
    tokens = models.JSONField(
        default=dict,
        blank=True,
        validators=[check_amounts],
        help_text="Limited tokens: how many of each name the tasks of the pool may hold"
        " at the same time.",
    )
    allowed_mounts = models.JSONField(
        default=list,
        blank=True,
        validators=[check_allowed_mounts],
        help_text="Paths on the hosts of the cells that tasks may mount, with"
        " everything below them: [{path, read_only}].",
    )
    cells_may_join = models.BooleanField(
        default=False,
        help_text="Whether a cell may move itself into the pool when it registers"
        " (CELLRUN_CELL_POOL); otherwise only operators move cells.",
    )
    privileged_allowed = models.BooleanField(
        default=False,
        help_text="Whether tasks may be privileged, and may have any capability of the kernel.",
    )
    exec_allowed = models.BooleanField(
        default=True,
        help_text="Whether users may run programs inside running tasks (cellrun exec).",
    )
    allowed_capabilities = ArrayField(
        models.CharField(max_length=32),
        default=list,
        validators=[check_capabilities],
        blank=True,
        help_text="Capabilities that tasks may have although not privileged, separated by commas:"
        " NET_RAW, SYS_PTRACE.",
    )
    input_networks = ArrayField(
        models.CharField(max_length=43),
        default=list,
        validators=[check_networks],
        blank=True,
        help_text="Networks from which inputs of tasks may be fetched although they are not public,"
        " separated by commas: 10.1.0.0/16. CELLRUN_CELL_ALLOWED_NETWORKS of a cell replaces them.",
    )
    job_limits = models.JSONField(
        default=dict,
        blank=True,
        validators=[check_job_limits],
        help_text="Limits for the values of jobs: max_pids, max_ttl_seconds, max_retries,"
        " max_grace_seconds, min_check_interval_seconds, max_ports, max_shm_mib, max_outputs,"
        " max_artifact_mib, default_disk_mib,"
        " always_pull; missing ones have their defaults.",
    )
    mass_loss = models.CharField(
        max_length=7,
        choices=[(choice.value, choice.value) for choice in MassLoss],
        default=MassLoss.HOLD,
        help_text="When more than half of the cells become silent at once: hold"
        " (declare no cell lost until the cells report again or an operator"
        " confirms the loss), or proceed after one more lease.",
    )
    loss_held_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text="Since when a mass loss is suppressed; empty: none is.",
    )
    loss_confirmed_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text="When an operator confirmed the mass loss: cells without a message"
        " since then may be declared lost.",
    )
    uncovered_since = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text="Since when placement has not considered all pending tasks of the"
        " pool; empty: it has.",
    )
    cursor = models.CharField(
        max_length=63,
        default="",
        blank=True,
        editable=False,
        help_text="The cell that round-robin selected last.",
    )

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Refuse plugins that are not installed. Raise ValidationError."""
        faults = {}
        named = {"sequencer": [self.sequencer], "selector": [self.selector]}
        for kind, names in {**named, "validators": self.validators}.items():
            known = plugins.names_of(plugins.Kind.of_field(kind))
            unknown = [name for name in names if name not in known]
            if unknown:
                faults[kind] = (
                    f"{', '.join(unknown)}: not installed (installed: {', '.join(known)})"
                )
        if len(set(self.validators)) < len(self.validators):
            faults.setdefault("validators", "must not name a validator twice")
        if faults:
            raise ValidationError(faults)


class Quota(models.Model):
    """The limits of one user, project or domain over all pools. An empty field: no limit.

    A row with `default_for` is the quota of all scopes of that kind without one of their own.
    """

    LIMITS = (
        "resources",
        "running_tasks",
        "running_jobs",
        "pending_tasks",
        "stored_bytes",
        "weight",
        "highest_band",
    )

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="quota",
    )
    project = models.OneToOneField(
        "Project", on_delete=models.CASCADE, null=True, blank=True, related_name="quota"
    )
    domain = models.OneToOneField(
        "Domain", on_delete=models.CASCADE, null=True, blank=True, related_name="quota"
    )
    default_for = models.CharField(
        max_length=7,
        choices=[(kind.value, f"each {kind}") for kind in ScopeKind],
        default="",
        blank=True,
        help_text="Kind of the scopes without a quota of their own to which the limits apply.",
    )
    resources = models.JSONField(
        default=dict,
        blank=True,
        validators=[check_amounts],
        help_text="Maximum of each resource: cpu_millis, memory_mib, disk_mib, gpu,"
        " named resources, tokens.",
    )
    running_tasks = models.PositiveIntegerField(null=True, blank=True)
    running_jobs = models.PositiveIntegerField(null=True, blank=True)
    pending_tasks = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="Maximum number of waiting tasks that take part in placement.",
    )
    stored_bytes = models.BigIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(0)],
        help_text="Maximum of the bytes that the store has for a project.",
    )
    weight = models.FloatField(
        default=1.0,
        validators=[MinValueValidator(0.001)],
        help_text="Share under the sequencer fair_share: weight 2 gets twice as much as weight 1.",
    )
    highest_band = models.CharField(
        max_length=11,
        choices=[(band.name.lower(), band.name.lower()) for band in Band],
        default="",
        blank=True,
        help_text="Highest band of new jobs; empty: interactive, and no limit for a domain.",
    )

    class Meta:
        constraints = (
            models.CheckConstraint(
                condition=Q(user__isnull=False, project=None, domain=None, default_for="")
                | Q(user=None, project__isnull=False, domain=None, default_for="")
                | Q(user=None, project=None, domain__isnull=False, default_for="")
                | (Q(user=None, project=None, domain=None) & ~Q(default_for="")),
                name="quota_of_one_scope",
            ),
            models.UniqueConstraint(
                fields=("default_for",),
                condition=~Q(default_for=""),
                name="one_default_quota_of_each_kind",
            ),
            models.CheckConstraint(condition=Q(weight__gt=0), name="quota_weight_positive"),
            models.CheckConstraint(
                condition=Q(stored_bytes=None)
                | (Q(stored_bytes__gte=0) & (Q(project__isnull=False) | Q(default_for="project"))),
                name="quota_of_stored_bytes_of_projects",
            ),
        )

    def __str__(self) -> str:
        if self.default_for:
            return f"default quota of each {self.default_for}"
        return f"quota of {self.kind} {getattr(self, self.kind)}"

    @property
    def kind(self) -> ScopeKind:
        """Return the kind of the scope, or of the scopes, that the quota limits."""
        if self.default_for:
            return ScopeKind(self.default_for)
        if self.user_id is not None:
            return ScopeKind.USER
        return ScopeKind.PROJECT if self.project_id is not None else ScopeKind.DOMAIN

    @property
    def effective_band(self) -> Band:
        """Return the highest band of new jobs."""
        return Band[self.highest_band.upper()] if self.highest_band else default_band(self.kind)

    def limits(self) -> dict[str, Any]:
        """Return all limits by field."""
        found = {name: getattr(self, name) for name in self.LIMITS}
        return {**found, "highest_band": self.effective_band.name.lower()}

    def clean(self) -> None:
        """Check that the quota has one scope, to which its limits apply. Raise ValidationError."""
        keys = (self.user_id, self.project_id, self.domain_id, self.default_for or None)
        if sum(key is not None for key in keys) != 1:
            raise ValidationError(
                "a quota belongs to one user, one project or one domain, or is a default"
            )
        if self.stored_bytes is not None and self.kind is not ScopeKind.PROJECT:
            raise ValidationError(
                {"stored_bytes": f"limits projects only, and this is a quota of a {self.kind}"}
            )


class Shape(models.Model):
    """The requirements of tasks that placement treats alike: they fit the same cells.

    `id` is computed from the other fields (`domain.placement.scheduling_key`), so that equal shapes
    share one row. The links have no constraints, since every submission writes shapes.
    """

    id = models.BigIntegerField(primary_key=True)
    pool = models.ForeignKey(
        Pool, on_delete=models.CASCADE, related_name="shapes", db_constraint=False, db_index=False
    )
    band = models.PositiveSmallIntegerField()
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.CASCADE,
        related_name="+",
        db_constraint=False,
        db_index=False,
    )
    project = models.ForeignKey(
        "Project",
        on_delete=models.CASCADE,
        related_name="+",
        db_constraint=False,
        db_index=False,
    )
    resources = models.JSONField()
    task_type = models.CharField(max_length=63)
    constraints = models.JSONField(default=list)
    placement_tags = ArrayField(models.CharField(max_length=64), default=list)
    coscheduled = models.BooleanField(default=False)
    allow_unsatisfiable = models.BooleanField(default=False)
    concurrency = models.JSONField(
        null=True,
        blank=True,
        help_text="The rule of the concurrency key of its jobs; empty: they have none.",
    )
    pending_reason = models.JSONField(
        null=True,
        blank=True,
        help_text="The reason that placement last found for the waiting tasks.",
    )

    def __str__(self) -> str:
        return f"shape {self.pk}"
