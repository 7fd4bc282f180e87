"""Images that several cells could not pull hold up their tasks, for a while."""

from collections.abc import Mapping

from controlplane.commands.cells.image_failures import hold_images
from controlplane.commands.convergence.rule import RuleContext


def hold(look: RuleContext) -> Mapping[str, int]:
    """Hold, and let go, the tasks of images that failed."""
    return {"held_by_images": hold_images(now=look.now)}
