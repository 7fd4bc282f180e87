"""Cells, and their leases in a separate table, so that heartbeats do not update a hot row."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from controlplane.domain.state.states import ORDERED_STATES, CellState, Quarantine
from controlplane.models.pools import check_amounts
from controlplane.spec.placing import OWN_TAGS


def own_tags() -> list[str]:
    """Return the fixed tags of a cell that chooses its tags."""
    return [OWN_TAGS]


class Cell(models.Model):
    """A host that runs attempts; LOST with an empty incarnation until it first registers."""

    name = models.CharField(max_length=63, unique=True)
    pool = models.ForeignKey("Pool", on_delete=models.PROTECT, related_name="cells")
    state = models.CharField(
        max_length=12,
        choices=[(state.value, state.value) for state in CellState],
        default=CellState.LOST,
    )
    state_reason = models.CharField(max_length=255, default="", blank=True)
    ordered_state = models.CharField(
        max_length=12,
        choices=[(state.value, state.value) for state in ORDERED_STATES],
        default=CellState.READY,
        help_text="State that an operator ordered; it applies unless the cell is LOST"
        " or QUARANTINED.",
    )
    drain_deadline_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="DRAINING: when attempts that still run are stopped; empty: never.",
    )
    draining_since = models.DateTimeField(
        null=True,
        blank=True,
        help_text="Since when DRAINING is the ordered state; empty: it is not.",
    )
    quarantined_for = models.CharField(
        max_length=12,
        choices=[(cause.value, cause.value) for cause in Quarantine],
        default="",
        blank=True,
    )
    quarantined_until = models.DateTimeField(null=True, blank=True)
    trusted_at = models.DateTimeField(
        null=True, blank=True, help_text="Earlier failures on the cell do not count."
    )
    incarnation = models.CharField(max_length=64, default="", blank=True)
    register_seq = models.BigIntegerField(default=0)
    key_salt = models.CharField(max_length=64)
    secret_key_id = models.CharField(
        max_length=16,
        default="",
        blank=True,
        help_text="Id of the CELLRUN_SECRET_KEY from which the key of the cell is derived.",
    )
    next_key_salt = models.CharField(
        max_length=64,
        default="",
        blank=True,
        help_text="Salt of the next key, which is valid beside the present one; empty: none.",
    )
    next_secret_key_id = models.CharField(max_length=16, default="", blank=True)
    next_key_until = models.DateTimeField(
        null=True,
        blank=True,
        help_text="When the next key is discarded, unless the cell has used it.",
    )
    revoked_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="When its key was revoked: no message of the cell counts, and it gets none."
        " A renewed key ends this.",
    )
    capacity = models.JSONField(
        default=dict, help_text="cpu_millis, memory_mib, disk_mib, gpu and named resources."
    )
    labels = models.JSONField(default=dict, blank=True)
    node_labels = models.JSONField(
        default=dict,
        blank=True,
        help_text="Labels below node/, which only operators set; a part of `labels`.",
    )
    max_capacity = models.JSONField(
        default=dict,
        blank=True,
        validators=[check_amounts],
        help_text="Maximum of each resource in `capacity`; others are not limited.",
    )
    fixed_tags = ArrayField(
        models.CharField(max_length=63),
        default=own_tags,
        blank=True,
        help_text="The tags that operators fix; only *: the cell chooses its tags.",
    )
    claims = models.JSONField(
        default=dict,
        blank=True,
        help_text="pool, labels, capacity and tags as the cell reported them last; empty: never.",
    )
    mismatch = models.TextField(
        default="",
        blank=True,
        help_text="How the claims differ from the enrolment; the cell gets no work until they"
        " agree.",
    )
    tags = ArrayField(models.CharField(max_length=63), default=list, blank=True)
    drivers = ArrayField(models.CharField(max_length=63), default=list, blank=True)
    task_types = ArrayField(models.CharField(max_length=63), default=list, blank=True)
    versions = models.JSONField(default=dict, blank=True)
    enrolled_at = models.DateTimeField()
    registered_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("name",)
        constraints = (
            models.CheckConstraint(
                condition=Q(revoked_at=None) | Q(state=CellState.LOST.value),
                name="cell_revoked_is_lost",
            ),
            models.CheckConstraint(
                condition=~Q(state=CellState.READY.value) | Q(mismatch=""),
                name="cell_ready_agrees",
            ),
            models.CheckConstraint(
                condition=Q(next_key_salt="", next_key_until=None)
                | (~Q(next_key_salt="") & Q(next_key_until__isnull=False, revoked_at=None)),
                name="cell_next_key_ends",
            ),
        )

    def __str__(self) -> str:
        return self.name


class CellLease(models.Model):
    """The last message and the lease of a cell. All reports up to `acked_seq` are applied."""

    cell = models.OneToOneField(
        "Cell",
        on_delete=models.CASCADE,
        primary_key=True,
        related_name="lease",
        db_constraint=False,
    )
    incarnation = models.CharField(max_length=64)
    last_message_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    silent_ticks = models.PositiveIntegerField(default=0)
    left_at = models.DateTimeField(
        null=True, blank=True, help_text="Time of the final goodbye, if that was the last message."
    )
    successor_at = models.DateTimeField(
        null=True, blank=True, help_text="When another incarnation last tried to replace this one."
    )
    heartbeat_seq = models.BigIntegerField(default=0)
    acked_seq = models.BigIntegerField(default=0)
    clock_ahead_seconds = models.FloatField(
        null=True,
        blank=True,
        help_text="Seconds by which the cell's clock is ahead of the control plane's,"
        " as the cell estimates; negative: behind.",
    )

    def __str__(self) -> str:
        return f"lease of cell {self.cell_id}"


class CellChange(models.Model):
    """A change of a cell's state, or an order of an operator."""

    id = models.BigAutoField(primary_key=True)
    cell = models.ForeignKey("Cell", on_delete=models.CASCADE, related_name="+", db_index=False)
    at = models.DateTimeField()
    from_state = models.CharField(max_length=12)
    to_state = models.CharField(max_length=12)
    reason = models.CharField(max_length=255, default="", blank=True)
    actor = models.CharField(
        max_length=150, default="", blank=True, help_text="Empty: the cell or the control plane."
    )

    class Meta:
        indexes = (
            models.Index(fields=("cell", "id"), name="cell_change_of_cell"),
            models.Index(fields=("at",), name="cell_change_at"),
        )

    def __str__(self) -> str:
        return f"change {self.pk} of cell {self.cell_id}"


class CellSample(models.Model):
    """Resources of a cell at the start of a minute, kept for a day; LOST cells have no samples.

    `reserved`: for waiting tasks, of what is not used.
    """

    at = models.DateTimeField()
    cell = models.ForeignKey("Cell", on_delete=models.CASCADE, related_name="+", db_index=False)
    cpu_millis_used = models.PositiveIntegerField()
    cpu_millis_reserved = models.PositiveIntegerField()
    cpu_millis_capacity = models.PositiveIntegerField()
    memory_mib_used = models.PositiveIntegerField()
    memory_mib_reserved = models.PositiveIntegerField()
    memory_mib_capacity = models.PositiveIntegerField()
    gpu_used = models.PositiveIntegerField()
    gpu_reserved = models.PositiveIntegerField()
    gpu_capacity = models.PositiveIntegerField()

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("cell", "at"), name="cell_sample_once_a_minute"),
        )
        indexes = (models.Index(fields=("at",), name="cell_sample_at"),)

    def __str__(self) -> str:
        return f"sample {self.pk} of cell {self.cell_id}"


class ImageFailure(models.Model):
    """An image that a cell could not pull; deleted when an attempt with the image starts."""

    image = models.CharField(max_length=512)
    cell = models.ForeignKey("Cell", on_delete=models.CASCADE, related_name="+")
    failures = models.PositiveIntegerField(default=1)
    failed_at = models.DateTimeField()
    held_until = models.DateTimeField(
        null=True, blank=True, help_text="Time until which no task with the image is placed."
    )

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("image", "cell"), name="image_failure_once_per_cell"),
        )

    def __str__(self) -> str:
        return f"{self.image} on {self.cell_id}"
