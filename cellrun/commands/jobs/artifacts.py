"""`cellrun artifacts` and `cellrun cp`: list and download the artifacts of tasks and attempts."""

import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from cellrun.addresses import UID, find_job_id, find_subject
from cellrun.api.session import Session, connect
from cellrun.display.listing import new_table
from cellrun.display.output import TABLE, Output, OutputOption, show, show_document
from cellrun.display.render import size_text
from cellrun.display.terminal import IsTask, Which, stderr
from cellrun.display.visible import VisibleWriter
from cellrun.documents import Artifact
from cellrun.downloads.files import DamagedArtifact, Download, check_targets, download_all
from cellrun.downloads.names import check_parts, is_at, select_artifacts
from cellrun.errors import BadInput, ClientError, Unreachable

_TASK = re.compile(r"(?:(?P<group>.+)[./])?(?P<index>[0-9]{1,9})")
_SHOWN_FAULTS = 20
STDOUT = "-"

Parallel = Annotated[int, typer.Option(min=1, max=32, help="Number of downloads at once.")]
DEFAULT_PARALLEL = 4


@dataclass(frozen=True, slots=True)
class _Owner:
    """A task or attempt with artifacts. `document`: as the API sent it. `task`: of a whole job."""

    artifacts: Sequence[Artifact]
    document: Any
    task: tuple[str, str] | None = None


class DownloadsFailed(ClientError):
    """Some files were not downloaded; `faults` has one line for each."""

    def __init__(self, total: int, faults: Sequence[str]) -> None:
        text = f"{len(faults)} of {total} files failed; the same command continues"
        super().__init__(text if total > 1 else faults[0])
        self._faults = faults if total > 1 else ()

    def lines(self) -> list[str]:
        """Return the number of failures, and the first of them."""
        shown = [f"  {fault}" for fault in self._faults[:_SHOWN_FAULTS]]
        more = len(self._faults) - len(shown)
        return [str(self), *shown, *([f"  … and {more} more"] if more else [])]


def artifacts(
    which: Which,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Only these files and folders; a quoted pattern."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--get", metavar="DIR", help="Download the artifacts to this folder."),
    ] = None,
    group: Annotated[str | None, typer.Option(help="Only tasks of this group of a job.")] = None,
    is_task: IsTask = False,
    parallel: Parallel = DEFAULT_PARALLEL,
    output: OutputOption = TABLE,
) -> None:
    """List or download the artifacts of all tasks of a job, of one task, or of an attempt.

    The artifacts of a task are those of its last attempt that succeeded, or else of its last
    attempt; of a task with a result from the cache, those of the task that ran. Files of a job are
    written to DIR/GROUP/INDEX/NAME. An interrupted download continues; files that are complete are
    not downloaded again.
    """
    with connect() as session:
        owners = [_only(owner, names) for owner in _find_owners(session, which, group, is_task)]
    if folder is None or output.is_document:
        _show_list([owner for owner in owners if owner.artifacts], output=output)
    if folder is not None:
        plan = [
            Download(item, folder, check_parts((*(owner.task or ()), *item["name"].split("/"))))
            for owner in owners
            for item in owner.artifacts
        ]
        if not plan:
            raise BadInput("no artifacts are selected: omit --get to list them")
        _download(plan, parallel, str(folder))


def cp(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB/GROUP.INDEX:NAME", help="Files or folders of tasks or attempts."
        ),
    ],
    dest: Annotated[
        str, typer.Argument(metavar="DEST", help="A file, a folder, or - for standard output.")
    ],
    parallel: Parallel = DEFAULT_PARALLEL,
) -> None:
    """Copy artifacts of tasks: `cellrun cp 7/fit.0:model .`

    If the job has one group, 7/0:model is enough; 7/fit.0#2:model and UID:model select an attempt.
    7:fit.0:model is another way to write 7/fit.0:model. Quote a NAME with wildcards: `*` and `?`
    match within a folder. Several files are written to the folder DEST. An interrupted download
    continues. On a terminal, - escapes control characters.
    """
    with connect() as session:
        chosen = [_select(session, source) for source in sources]
        if dest == STDOUT:
            items = [item for _, selected in chosen for item, _ in selected]
            if len(items) != 1:
                raise BadInput(f"{len(items)} files are selected: standard output takes one")
            _print(session, items[0])
            return
    _download(_plan_copy(chosen, dest), parallel, dest)


def _find_owners(session: Session, which: str, group: str | None, is_task: bool) -> list[_Owner]:
    """Return the attempt, the task, or the tasks of the job that `which` names."""
    if UID.fullmatch(which):
        found = session.artifacts(which)
        return [_Owner(found, found)]
    if is_task:
        found = session.task_artifacts(which)
        return [_Owner(found, found)]
    subject = find_subject(session, which)
    if subject.attempt is not None:
        found = session.artifacts(subject.attempt["uid"])
    elif subject.task is not None:
        found = session.task_artifacts(subject.task["id"])
    else:
        assert subject.job_id is not None
        each_task = session.job_artifacts(subject.job_id, group=subject.group or group)
        return [
            _Owner(each["artifacts"], each, (each["group"], str(each["index"])))
            for each in each_task
        ]
    return [_Owner(found, found)]


def _only(owner: _Owner, names: Sequence[str] | None) -> _Owner:
    """Return the owner with those of its artifacts that one of `names` selects."""
    if not names:
        return owner
    wanted = {item["name"] for name in names for item, _ in select_artifacts(owner.artifacts, name)}
    chosen = [item for item in owner.artifacts if item["name"] in wanted]
    document = {**owner.document, "artifacts": chosen} if owner.task else chosen
    return _Owner(chosen, document, owner.task)


def _show_list(owners: Sequence[_Owner], *, output: Output) -> None:
    if output.is_document:
        of_job = [owner.document for owner in owners if owner.task]
        show_document(output, of_job or [item for owner in owners for item in owner.artifacts])
        return
    has_tasks = any(owner.task for owner in owners)
    table = new_table(*(["TASK"] if has_tasks else []), "ARTIFACT", "SIZE", "SHA-256", "WHERE")
    for owner in owners:
        for item in owner.artifacts:
            task = [".".join(owner.task)] if owner.task else []
            where = item["uri"] if item["link"] is None else ""
            size = size_text(item["size"])
            table.add_row(*task, item["name"], size, item["sha256"][:12], where)
    show(output, None, table if owners else "no artifacts")


def _select(session: Session, source: str) -> tuple[str, list[Any]]:
    """Return the name in the source, and the artifacts that it selects. Raise BadInput."""
    first, _, rest = source.partition(":")
    if UID.fullmatch(first):
        found, name = session.artifacts(first), rest
    elif "/" in first:
        subject, name = find_subject(session, first), rest
        if subject.attempt is not None:
            found = session.artifacts(subject.attempt["uid"])
        elif subject.task is not None:
            found = session.task_artifacts(subject.task["id"])
        else:
            raise BadInput(f"{source}: expected JOB/GROUP.INDEX:NAME, as in 7/main.0:model")
    else:
        task, colon, name = rest.partition(":")
        place = _TASK.fullmatch(task)
        if not first or not colon or place is None:
            text = "expected JOB/GROUP.INDEX:NAME, for example 7/main.0:model, or UID:NAME"
            raise BadInput(f"{source}: {text}")
        task_id = _find_task(
            session, find_job_id(session, first), place["group"], int(place["index"])
        )
        found = session.task_artifacts(task_id)
    chosen = select_artifacts(found, name)
    if not chosen:
        raise BadInput(f"{source}: no such artifact; `cellrun artifacts {first}` lists them")
    return name, chosen


def _find_task(session: Session, job_id: int, group: str | None, index: int) -> int:
    found = list(session.tasks(job_id, group=group, index=index))
    if not found:
        name = str(index) if group is None else f"{group}.{index}"
        raise BadInput(f"job {job_id} has no task {name}")
    if len(found) > 1:
        names = ", ".join(f"{task['group']}.{index}" for task in found[:3])
        raise BadInput(f"job {job_id} has several tasks {index}: name the group, as in {names}")
    return found[0]["id"]


def _plan_copy(chosen: Sequence[tuple[str, list[Any]]], dest: str) -> list[Download]:
    """Return what to write where, as `cp -r` would. Raise BadInput."""
    target = Path(dest)
    name, selected = chosen[0]
    is_one = len(chosen) == 1 and all(is_at(item, name) for item, _ in selected)
    if is_one and not target.is_dir() and not dest.endswith("/"):
        [(item, parts), *_] = selected
        if len(parts) == 1:
            return [Download(item, target.parent, (target.name,))]
        return [Download(item, target, check_parts(parts[1:])) for item, parts in selected]
    return [
        Download(item, target, check_parts(parts))
        for _, selected in chosen
        for item, parts in selected
    ]


def _download(plan: Sequence[Download], parallel: int, dest: str) -> None:
    """Download the files with a progress bar. Raise DownloadsFailed, BadInput, Unreachable."""
    plan = check_targets(plan)
    console = stderr()
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    faults: list[str] = []
    there = 0
    with Progress(
        *columns,
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as progress:
        bar = progress.add_task(
            _files(len(plan)), total=sum(download.item["size"] for download in plan)
        )
        ended = download_all(
            plan,
            parallel=parallel,
            connect=connect,
            on_bytes=lambda count: progress.advance(bar, count),
        )
        with closing(ended):
            for number, (download, result) in enumerate(ended, 1):
                if isinstance(result, Unreachable):
                    raise result
                if isinstance(result, ClientError):
                    faults.append(f"{download.target}: {result.lines()[0]}")
                elif not result:
                    there += 1
                progress.update(bar, description=f"{number} of {_files(len(plan))}")
    if faults:
        raise DownloadsFailed(len(plan), faults)
    size = size_text(sum(download.item["size"] for download in plan))
    before = f", {there} of them complete before" if there else ""
    console.print(f"{dest}: {_files(len(plan))}, {size}{before}")


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _print(session: Session, item: Artifact) -> None:
    """Write an artifact to standard output. Raise DamagedArtifact at its end."""
    if item["link"] is None:
        raise BadInput(f"{item['name']} is kept at {item['uri']}, and not here")
    with session.open_artifact(item) as (_, pieces):
        if sys.stdout.isatty():
            terminal = VisibleWriter(sys.stdout)
            digest = _copy(pieces, terminal)
            terminal.close()
        else:
            digest = _copy(pieces, sys.stdout.buffer)
            sys.stdout.buffer.flush()
    if digest != item["sha256"]:
        raise DamagedArtifact(f"{item['name']} was received damaged: its SHA-256 differs")


def _copy(pieces: Iterator[bytes], file: BinaryIO | VisibleWriter) -> str:
    """Write the pieces and return their SHA-256."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
        file.write(piece)
    return digest.hexdigest()
