"""`cellrun cache list`, `show`, `evict`: entries of the result cache."""

from itertools import islice
from typing import Annotated, Literal

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from cellrun.api.session import connect
from cellrun.display.listing import new_table
from cellrun.display.output import TABLE, OutputOption, show
from cellrun.display.render import instant_text, size_text
from cellrun.display.terminal import agrees
from cellrun.documents import CacheEntry
from cellrun.errors import EXIT_FAILED

Key = Annotated[
    str, typer.Argument(metavar="KEY", help="Key of an entry; of a given key, KEY@VERSION.")
]
Project = Annotated[
    str | None,
    typer.Option(
        metavar="PROJECT",
        help="Project that uses the entry, as name or domain/name. Default: default/default, or"
        " your only project.",
    ),
]
Scope = Annotated[
    Literal["project", "domain"],
    typer.Option(help="domain: an entry that the domain of the project shares."),
]

app = typer.Typer(
    help="List, show and evict the results that identical tasks of a project reuse.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("list")
def list_entries(
    project: Project = None,
    scope: Annotated[
        Literal["project", "domain"] | None, typer.Option(help="Only entries of this scope.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Only entries with this whole key.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of lines.")] = 20,
    output: OutputOption = TABLE,
) -> None:
    """List the entries that tasks of a project can use, newest first."""
    with connect() as session:
        entries = session.cache_entries(project=project, scope=scope, key=key, limit=limit)
        found = list(islice(entries, limit))
    table = new_table("KEY", "SCOPE", "POPULATED BY", "POPULATED AT", "HITS", "LAST USE", "SIZE")
    table.add_column("OUTPUTS")
    for entry in found:
        table.add_row(
            entry["key"],
            entry["scope"],
            _origin(entry),
            instant_text(entry["origin"]["populated_at"]),
            str(entry["hits"]),
            instant_text(entry["used_at"]),
            size_text(entry["size_bytes"]),
            str(entry["outputs_count"]),
        )
    show(output, found, table if found else "no cache entries")


@app.command("show")
def show_entry(
    key: Key, project: Project = None, scope: Scope = "project", output: OutputOption = TABLE
) -> None:
    """Show an entry with its result and outputs."""
    with connect() as session:
        entry = session.cache_entry(key, project=project, scope=scope)
    show(output, entry, _page(entry))


@app.command("evict")
def evict_entry(
    key: Key,
    project: Project = None,
    scope: Scope = "project",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    output: OutputOption = TABLE,
) -> None:
    """Evict an entry: the next identical task runs again. Earlier hits keep the result."""
    with connect() as session:
        entry = session.cache_entry(key, project=project, scope=scope)
        if not yes and not agrees(f"Evict the cache entry {key} ({_origin(entry)})?"):
            raise typer.Exit(EXIT_FAILED)
        session.evict_cache_entry(key, project=project, scope=scope)
    show(output, entry, f"cache entry {key} is evicted")


def _origin(entry: CacheEntry) -> str:
    origin = entry["origin"]
    if origin["job"] is None:
        return "a job of another project"
    by = f" of {origin['submitter']}" if origin["submitter"] else ""
    return f"job {origin['job']}, task {origin['task']}{by}"


def _page(entry: CacheEntry) -> RenderableType:
    origin = entry["origin"]
    facts = new_table("FIELD", "VALUE")
    for name, value in (
        ("scope", entry["scope"]),
        ("project", f"{entry['domain']}/{entry['project'] or '(another project)'}"),
        ("populated by", _origin(entry)),
        ("attempt", origin["attempt_uid"] or ""),
        ("populated at", instant_text(origin["populated_at"])),
        ("hits", str(entry["hits"])),
        ("last use", instant_text(entry["used_at"])),
        ("size", size_text(entry["size_bytes"])),
        ("result", entry["result"] or ""),
    ):
        facts.add_row(name, Text(value))
    outputs = new_table("OUTPUT", "SIZE", "SHA-256")
    for item in entry["outputs"] or ():
        outputs.add_row(Text(item["name"]), size_text(item["size"]), item["sha256"][:12])
    parts: list[RenderableType] = [Text(entry["key"], style="bold"), Text(), facts]
    if entry["outputs"]:
        parts += [Text(), outputs]
    return Group(*parts)
