"""What operators need to see of the system itself: ticks, inbox probes, dead letters, alerts."""

from django.db import models


class TickState(models.Model):
    """The last run of each tick. `mark` counts wakes that found it busy: it runs once more."""

    name = models.CharField(max_length=32, primary_key=True)
    mark = models.BigIntegerField(default=0)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    covered_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="Start of the last pass that looked at everything that waits.",
    )
    hold_until = models.DateTimeField(
        null=True,
        blank=True,
        help_text="After a gap of our own: until when nothing is declared lost or overdue.",
    )
    counts = models.JSONField(default=dict, blank=True)

    def __str__(self) -> str:
        return self.name


class InboxProbe(models.Model):
    """Whether we can hear: convergence sends a probe through each shard, the inbox stamps it."""

    shard = models.PositiveSmallIntegerField(primary_key=True)
    sent_at = models.DateTimeField()
    heard_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"inbox {self.shard}"


class DeadLetter(models.Model):
    """A message that could not be applied, kept for people."""

    at = models.DateTimeField()
    source = models.CharField(max_length=100)
    error = models.TextField()
    body = models.TextField()

    def __str__(self) -> str:
        return f"dead letter {self.pk}"


class Alert(models.Model):
    """Something an operator should look at; at most one open alert per kind and subject."""

    kind = models.CharField(max_length=63)
    subject = models.CharField(max_length=255)
    text = models.TextField()
    raised_at = models.DateTimeField()
    cleared_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("kind", "subject"),
                condition=models.Q(cleared_at=None),
                name="alert_open_once",
            ),
        )

    def __str__(self) -> str:
        return f"{self.kind}: {self.subject}"
