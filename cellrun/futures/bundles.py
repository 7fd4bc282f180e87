"""Put calls that were submitted together into jobs: equal ones are the replicas of a group."""

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cellrun.futures import functions
from cellrun.futures.promises import ServerFuture

MAX_GROUPS = 100
MAX_JOB_BYTES = 1_500_000
"""Of the calls of a job: a request of one job is accepted up to 4 MiB."""


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A call that is not submitted. `shape`: calls of the same shape have one group.

    `function` and `call`: only of a function.
    """

    future: ServerFuture[Any]
    shape: str
    function: str | None = None
    call: str = ""

    @property
    def size(self) -> int:
        """Return about how many bytes it adds to a job."""
        return len(self.call) + len(self.function or "") + len(self.shape)


@dataclass(slots=True)
class Bundle:
    """A job of a client with the futures that are open, by the place of their task in it.

    `whole`: the future of the job itself. `reads`: a success has a result that must be read.
    `size`: about that of the document.
    """

    document: Mapping[str, Any]
    futures: dict[str, ServerFuture[Any]] = field(default_factory=dict)
    whole: ServerFuture[Any] | None = None
    reads: bool = False
    is_function: bool = False
    job_id: int | None = None
    size: int = 0
    last_change: float = 0.0

    def accept(self, job_id: int) -> None:
        """Take the number of the job."""
        self.job_id = job_id
        for place, future in self.futures.items():
            future.job_id, future.place = job_id, place
        if self.whole is not None:
            self.whole.job_id = job_id

    @property
    def open_futures(self) -> list[ServerFuture[Any]]:
        """Return all futures that are not done."""
        return [*self.futures.values(), *([] if self.whole is None else [self.whole])]

    @property
    def is_over(self) -> bool:
        """Return whether no future is open."""
        return not self.futures and self.whole is None

    def remove(self, future: ServerFuture[Any]) -> None:
        """Forget a future that is done."""
        if self.whole is future:
            self.whole = None
        elif self.futures.get(future.place) is future:
            del self.futures[future.place]


def shape_of(group: Mapping[str, Any]) -> str:
    """Return the text by which equal groups are recognized."""
    return json.dumps(group)


def bundle_calls(
    calls: Iterable[PendingCall], job: Mapping[str, Any], *, most_tasks: int
) -> Iterator[Bundle]:
    """Yield jobs of at most so many calls. A task that fails does not end the others of its job."""
    for is_function in (False, True):
        chosen = [call for call in calls if (call.function is not None) is is_function]
        for part in _split(chosen, most_tasks):
            yield _bundle(part, job, is_function=is_function)


def _split(calls: Sequence[PendingCall], most_tasks: int) -> Iterator[list[PendingCall]]:
    part: list[PendingCall] = []
    shapes: set[tuple[str, str | None]] = set()
    size = 0
    for call in calls:
        key = (call.shape, call.function)
        added = len(call.call) + (0 if key in shapes else call.size - len(call.call))
        too_many = len(part) == most_tasks or (key not in shapes and len(shapes) == MAX_GROUPS)
        if part and (too_many or size + added > MAX_JOB_BYTES):
            yield part
            part, shapes, size, added = [], set(), 0, call.size
        part.append(call)
        shapes.add(key)
        size += added
    if part:
        yield part


def _bundle(calls: Sequence[PendingCall], job: Mapping[str, Any], *, is_function: bool) -> Bundle:
    by_shape: dict[tuple[str, str | None], list[PendingCall]] = {}
    for call in calls:
        by_shape.setdefault((call.shape, call.function), []).append(call)
    groups: list[dict[str, Any]] = []
    futures: dict[str, ServerFuture[Any]] = {}
    for number, ((shape, function), members) in enumerate(by_shape.items()):
        name = "main" if len(by_shape) == 1 else f"call-{number}"
        group = {**json.loads(shape), "name": name, "replicas": len(members)}
        if function is not None:
            packed = functions.input_of(function, [member.call for member in members])
            group["inputs"] = [*group.get("inputs", []), packed]
        groups.append(group)
        futures |= {f"{name}.{index}": call.future for index, call in enumerate(members)}
    document = {
        **job,
        "guid": f"python/{uuid.uuid4()}",
        "groups": groups,
        "max_task_failures": len(calls),
        "min_available": len(calls),
    }
    reads = any(group.get("result_file", "") is not None for group in groups)
    size = sum(len(shape) for shape, _ in by_shape) + sum(call.size for call in calls)
    return Bundle(document, futures, reads=reads, is_function=is_function, size=size)


BundleMaker = Callable[[Sequence[PendingCall]], Iterator[Bundle]]
