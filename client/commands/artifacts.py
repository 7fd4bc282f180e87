"""`cellrun artifacts`: list and download the artifacts of attempts."""

import hashlib
import sys
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from client.commands.watch import UID
from client.documents import Artifact
from client.errors import BadInput
from client.render import new_table
from client.session import Session, connect
from client.terminal import JsonFlag, show, stderr
from client.visible import VisibleWriter

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def artifacts(
    which: Annotated[str, typer.Argument(metavar="ID", help="Id of a task, or uid of an attempt.")],
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Name of an artifact; with -o also of a folder."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", metavar="FILE", help="Destination; a folder if several are written."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """List or download the artifacts of an attempt, or of the last attempt of a task.

    Artifacts are outputs, or a checkpoint; of a task with a result from the cache, the outputs of
    the task that ran. On a terminal, control characters are escaped; a file or
    pipe gets the content unchanged.
    """
    with connect() as session:
        uid = which if UID.fullmatch(which) else _last_attempt(session, which)
        found = session.artifacts(uid)
        if name is None and output is None:
            table = new_table("ARTIFACT", "SIZE", "SHA-256", "WHERE")
            for item in found:
                where = "" if item["uri"].startswith("/") else item["uri"]
                table.add_row(item["name"], size_text(item["size"]), item["sha256"][:12], where)
            show(as_json, found, table if found else f"attempt {uid} has no artifacts")
            return
        one = next((item for item in found if item["name"] == name), None)
        if one is not None:
            _write_one(session, uid, one, output)
            return
        below = [item for item in found if name is None or item["name"].startswith(f"{name}/")]
        if not below:
            wanted = "artifacts" if name is None else f"artifact {name}: omit NAME to list all"
            raise BadInput(f"attempt {uid} has no {wanted}")
        if output is None:
            raise BadInput(f"{name} is a folder: give the destination with -o")
        for item in below:
            target = output / item["name"].removeprefix(f"{name}/" if name else "")
            if not target.resolve().is_relative_to(output.resolve()):
                raise BadInput(f"{item['name']!r} would be written outside of {output}")
            _write_one(session, uid, item, target)


def _last_attempt(session: Session, task_id: str) -> str:
    task = session.task(task_id)
    if origin := task["cache_origin"]:
        return origin["attempt_uid"]
    attempts = session.attempts(task["id"])
    if not attempts:
        raise BadInput(f"task {task_id} has no attempt yet")
    return attempts[-1]["uid"]


def _write_one(session: Session, uid: str, item: Artifact, output: Path | None) -> None:
    """Write an artifact: a file only if it is complete, standard output piece by piece."""
    if output is None:
        if sys.stdout.isatty():
            terminal = VisibleWriter(sys.stdout)
            _copy(session, uid, item, terminal)
            terminal.close()
        else:
            _copy(session, uid, item, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    draft = output.with_name(f".{output.name}.part")
    try:
        with draft.open("wb") as file:
            _copy(session, uid, item, file)
        draft.replace(output)
    finally:
        draft.unlink(missing_ok=True)
    stderr().print(f"{output}: {size_text(item['size'])}")


def _copy(session: Session, uid: str, item: Artifact, file: BinaryIO | VisibleWriter) -> None:
    digest = hashlib.sha256()
    for piece in session.read_artifact(uid, item["name"]):
        digest.update(piece)
        file.write(piece)
    if digest.hexdigest() != item["sha256"]:
        raise BadInput(f"{item['name']} was received damaged: its SHA-256 differs; try again")


def size_text(size: int) -> str:
    """Return a number of bytes with a unit: `1.5 MiB`."""
    amount, unit = float(size), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f} {_UNITS[unit]}" if unit else f"{size} B"
