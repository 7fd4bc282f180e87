"""Select the store that the settings name."""

from django.conf import settings

from controlplane.storage import folder, objects
from controlplane.storage.interface import ArtifactStore


def current_store() -> ArtifactStore:
    """Return the object store of CELLRUN_STORE_URL, or else the folder."""
    return objects if settings.CELLRUN.has_object_store else folder


def appends_at_once() -> int:
    """Return how many streams it is worth to append to at once: requests to a server take long."""
    return 16 if settings.CELLRUN.has_object_store else 1
