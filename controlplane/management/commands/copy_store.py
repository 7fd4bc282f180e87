"""`manage.py copy_store URL`: copy the folder of the store to an object store (docs/store.md).

Exit with 0 if everything was copied, with 1 after an interruption or an error.
"""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.storage.addresses import is_object_store, read_store_url
from controlplane.storage.copying import CopyResult, copy_store


class Command(BaseCommand):
    """Copies what is missing or has changed; the folder is not changed."""

    help = "Copy the folder of the store to an object store; run it again after an interruption."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("url", help="the object store, such as s3://bucket/prefix")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            url = read_store_url(options["url"])
        except ValueError as error:
            raise CommandError(f"expected {error}, not {options['url']!r}") from None
        if not is_object_store(url):
            raise CommandError("expected an object store, not a folder")
        if settings.CELLRUN.has_object_store:
            raise CommandError("CELLRUN_STORE_URL names an object store: the copy is over")
        source, done = settings.CELLRUN.store_folder, CopyResult()
        if not source.is_dir():
            raise CommandError(f"there is no folder {source}")
        try:
            for done in copy_store(source, url):
                if options["verbosity"] > 1:
                    self.stdout.write(_text(done))
        except KeyboardInterrupt:
            raise CommandError(f"interrupted: run it again; {_text(done)}") from None
        except OSError as error:
            raise CommandError(f"{error}: run it again; {_text(done)}") from error
        self.stdout.write(_text(done))


def _text(done: CopyResult) -> str:
    return f"{done.files} files with {done.size} bytes copied, {done.skipped} objects were there"
