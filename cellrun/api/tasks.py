"""Call the API about tasks, attempts, their output and artifacts, and the cache."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from cellrun.api.paths import batched, path_to, project_query
from cellrun.api.transport import MOST_ROWS, ApiTransport
from cellrun.documents import Artifact, Attempt, CacheEntry, Change, Task, TaskArtifacts
from cellrun.errors import Unreachable


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A part of a log, which may end within a line, and the cursor of the next part."""

    content: bytes
    cursor: str


class TaskCalls(ApiTransport):
    """The calls about tasks and attempts. Every method may raise Unreachable or ApiError."""

    def tasks(
        self,
        job_id: int,
        *,
        group: str | None = None,
        index: int | None = None,
        state: str | None = None,
        limit: int = MOST_ROWS,
    ) -> Iterator[Task]:
        """Yield the tasks of a job by group and index. `state`: names, separated by commas."""
        query = {"group": group, "index": index, "state": state}
        return self._pages(path_to("jobs", job_id, "tasks"), query, limit)

    def tasks_of_jobs(
        self,
        job_ids: Collection[int],
        *,
        state: str | None = None,
        fields: str | None = None,
        limit: int = MOST_ROWS,
    ) -> Iterator[Task]:
        """Yield the tasks of any number of jobs. `state`, `fields`: names, separated by commas.

        Jobs that do not exist, or that the token may not read, have none. With `fields`, the
        documents have only these.
        """
        for part in batched(job_ids):
            query = {"job": part, "state": state, "fields": fields}
            for task in self._pages("/tasks", query, limit):
                limit -= 1
                yield task
            if limit <= 0:
                return

    def task(self, task_id: int | str) -> Task:
        """Return one task, by id or guid."""
        return self._call("GET", path_to("tasks", task_id))

    def explain(self, task_id: int) -> dict[str, Any]:
        """Return why a task waits, where it runs, or how it ended."""
        return self._call("GET", f"/tasks/{task_id}/explain")

    def attempts(self, task_id: int) -> list[Attempt]:
        """Return the attempts of a task, oldest first."""
        attempts = self._pages(path_to("tasks", task_id, "attempts"))
        return sorted(attempts, key=lambda attempt: attempt["number"])

    def attempt(self, uid: str) -> Attempt:
        """Return one attempt."""
        return self._call("GET", path_to("attempts", uid))

    def log(
        self, uid: str, stream: str = "stdout", after: str = "0", *, tail: int | None = None
    ) -> LogPiece:
        """Return output of an attempt after the cursor `after`; more may follow.

        `tail`: only this number of last lines.
        """
        answer = self._send(
            "GET",
            path_to("attempts", uid, "logs"),
            query={"stream": stream, "after": after, "tail": tail},
            headers={"Accept": "text/plain, application/problem+json"},
        )
        return LogPiece(answer.content, answer.headers.get("X-Next-Cursor", after))

    def history(
        self,
        of: Literal["jobs", "tasks", "attempts"],
        key: int | str,
        *,
        merged: bool = True,
        limit: int = MOST_ROWS,
    ) -> Iterator[Change]:
        """Yield the history of an object, newest first. `merged`: equal changes are one entry."""
        query = {"merged": "true" if merged else "false"}
        return self._pages(path_to(of, key, "history"), query, limit)

    def artifacts(self, uid: str) -> list[Artifact]:
        """Return the artifacts of an attempt by name."""
        return self._call("GET", path_to("attempts", uid, "artifacts"))["results"]

    def task_artifacts(self, task_id: int | str) -> list[Artifact]:
        """Return the artifacts of a task by name: of its last succeeded, or else last, attempt."""
        return self._call("GET", path_to("tasks", task_id, "artifacts"))["results"]

    def job_artifacts(self, job_id: int, *, group: str | None = None) -> Iterator[TaskArtifacts]:
        """Yield the tasks of a job that have artifacts, with these."""
        return self._pages(path_to("jobs", job_id, "artifacts"), {"group": group})

    def read_artifact(self, uid: str, name: str) -> Iterator[bytes]:
        """Yield the content of an artifact in pieces."""
        # With the API's path, for which `_address` would search in the name.
        path = f"/api/v1{path_to('attempts', uid, 'artifacts')}/{quote(name)}"
        with self._open(path) as answer:
            yield from self._pieces(answer)

    @contextmanager
    def open_artifact(
        self, item: Artifact, start: int = 0
    ) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Yield the offset at which the content begins, `start` or 0, and the content in pieces."""
        headers = {}
        if start:
            headers = {"Range": f"bytes={start}-", "If-Range": f'"{item["sha256"]}"'}
        with self._open(item["link"] or "", headers) as answer:
            is_part = answer.status_code == 206
            begin = answer.headers.get("Content-Range", "").startswith(f"bytes {start}-")
            if is_part and not begin:
                raise Unreachable(self.url, "it sent another part of the file than requested")
            yield start if is_part else 0, self._pieces(answer)

    def release_attempt(self, uid: str, *, reason: str) -> Attempt:
        """Release an ended attempt whose container is gone (operators)."""
        return self._call("POST", path_to("attempts", uid, "release"), body={"reason": reason})


class CacheCalls(ApiTransport):
    """The calls about the cache. Every method may raise Unreachable or ApiError."""

    def cache_entries(
        self,
        *,
        project: str | None = None,
        scope: str | None = None,
        key: str | None = None,
        limit: int = MOST_ROWS,
    ) -> Iterator[CacheEntry]:
        """Yield the cache entries that a project can use, newest first.

        `project`: as in `secrets`.
        """
        query = {**project_query(project), "scope": scope, "key": key}
        return self._pages("/cache", query, limit)

    def cache_entry(
        self, key: str, *, project: str | None = None, scope: str = "project"
    ) -> CacheEntry:
        """Return a cache entry with its result and outputs; `project` may be domain/name."""
        query = {**project_query(project), "scope": scope}
        return self._call("GET", path_to("cache", key), query=query)

    def evict_cache_entry(
        self, key: str, *, project: str | None = None, scope: str = "project"
    ) -> None:
        """Evict a cache entry. Tasks that already have its result keep it."""
        query = {**project_query(project), "scope": scope}
        self._call("DELETE", path_to("cache", key), query=query)
