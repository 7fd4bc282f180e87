"""The store in an object store (S3, Google Cloud Storage, Azure), over the library obstore."""

from controlplane.storage.objects.artifacts import (
    announce,
    check_present,
    check_space,
    link_to_artifact,
    open_artifact,
    put_manifest,
    put_piece,
)
from controlplane.storage.objects.contents import (
    append_log,
    find_tail,
    link_to_input,
    put_input,
    read_input,
    read_log,
    remove_logs,
)
from controlplane.storage.objects.orphans import is_older, put_away, walk_store
from controlplane.storage.objects.trash import delete_discarded, discard_attempts

__all__ = (
    "announce",
    "append_log",
    "check_present",
    "check_space",
    "delete_discarded",
    "discard_attempts",
    "find_tail",
    "is_older",
    "link_to_artifact",
    "link_to_input",
    "open_artifact",
    "put_away",
    "put_input",
    "put_manifest",
    "put_piece",
    "read_input",
    "read_log",
    "remove_logs",
    "walk_store",
)
