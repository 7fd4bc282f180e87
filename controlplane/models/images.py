"""Images that cells could not pull because of the registry, not of the task."""

from django.db import models


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
