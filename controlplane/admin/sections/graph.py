"""The graph of a job: its groups, the jobs that it depends on, and those that depend on it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from django.urls import reverse

from controlplane.admin.badges import list_link, shortened
from controlplane.admin.base import Section
from controlplane.contract.states import TaskState
from controlplane.domain.state.states import COLOURS
from controlplane.models import Job, JobDependency, TaskGroup

# More are in tables: a graph of them would not be small.
MAX_GROUPS = 30
MAX_JOBS = 8
_NAME_CHARS = 20
# Sizes in pixels, of which the SVG has no smaller unit.
_WIDTH, _HEIGHT = 168, 46
_GAP_X, _GAP_Y = 104, 14
_MARGIN = 30


@dataclass(slots=True)
class Node:
    """A group or a job. `parts`: left edge, width and colour of each state in its bar."""

    name: str
    note: str
    address: str
    parts: Sequence[tuple[float, float, str]] = ()
    left: int = 0
    top: int = 0

    @property
    def middle(self) -> int:
        """Return the height at which edges begin and end."""
        return self.top + _HEIGHT // 2


@dataclass(frozen=True, slots=True)
class Edge:
    """An arrow, which means that the second end waits for the first. `kind`: a CSS class."""

    path: str
    text: str
    label_left: int
    label_top: int
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """The frame around the groups of a job."""

    left: int
    top: int
    width: int
    height: int
    text: str


@dataclass(frozen=True, slots=True)
class Graph(Section):
    """An SVG of nodes and edges. `text`: the edges in words."""

    template: ClassVar[str] = "controlplane/section_graph.html"
    nodes: Sequence[Node] = ()
    edges: Sequence[Edge] = ()
    frame: Frame | None = None
    width: int = 0
    height: int = 0
    text: str = ""
    node_width: int = _WIDTH
    node_height: int = _HEIGHT


@dataclass(slots=True)
class _Canvas:
    """Columns of nodes from left to right, and their edges."""

    columns: list[list[Node]] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def place(self) -> None:
        """Give each node its place; columns are centred."""
        tallest = max(len(column) for column in self.columns)
        for number, column in enumerate(self.columns):
            begin = (tallest - len(column)) * (_HEIGHT + _GAP_Y) // 2
            for row, node in enumerate(column):
                node.left = _MARGIN + number * (_WIDTH + _GAP_X)
                node.top = _MARGIN + begin + row * (_HEIGHT + _GAP_Y)

    def connect(self, begin: tuple[int, int], end: tuple[int, int], text: str, kind: str) -> None:
        """Draw an arrow between two points."""
        (x1, y1), (x2, y2) = begin, end
        bend = (x1 + x2) // 2
        path = f"M{x1},{y1} C{bend},{y1} {bend},{y2} {x2},{y2}"
        self.edges.append(Edge(path, text, bend, (y1 + y2) // 2 - 4, kind))


def graph_sections(
    job: Job,
    groups: Sequence[TaskGroup],
    dependencies: Sequence[tuple[JobDependency, Job | None]],
    dependants: Sequence[JobDependency],
) -> list[Section]:
    """Return the graph of a job that is a gang, or that has dependencies."""
    inner = any(group.depends_on for group in groups)
    if not (inner or dependencies or dependants or job.coscheduled) or len(groups) > MAX_GROUPS:
        return []
    before = [(_job_node(other, item.on_name), item) for item, other in dependencies[:MAX_JOBS]]
    after = [(_job_node(item.job, ""), item) for item in dependants[:MAX_JOBS]]
    own = {group.name: _group_node(job, group) for group in groups}
    layers = _layers(groups)
    canvas = _Canvas()
    if before:
        canvas.columns.append([node for node, _ in before])
    for layer in range(max(layers.values(), default=0) + 1):
        canvas.columns.append([own[name] for name in own if layers[name] == layer])
    if after:
        canvas.columns.append([node for node, _ in after])
    canvas.place()
    frame = _frame(job, own.values())
    for group in groups:
        for wait in group.depends_on:
            first, second = own[wait["group"]], own[group.name]
            begin, end = (first.left + _WIDTH, first.middle), (second.left, second.middle)
            canvas.connect(begin, end, wait["until"], "")
            canvas.words.append(f"{group.name} waits until {wait['group']} has {wait['until']}")
    center = frame.top + frame.height // 2
    for node, item in before:
        canvas.connect((node.left + _WIDTH, node.middle), (frame.left, center), *_status(item))
        canvas.words.append(f"this job waits until {node.name} has {item.until}")
    for node, item in after:
        edge = frame.left + frame.width
        canvas.connect((edge, center), (node.left, node.middle), *_status(item))
        canvas.words.append(f"{node.name} waits until this job has {item.until}")
    nodes = [node for column in canvas.columns for node in column]
    return [
        Graph(
            "Dependencies",
            anchor="graph",
            nodes=nodes,
            edges=canvas.edges,
            frame=frame,
            width=max(frame.left + frame.width, *(node.left + _WIDTH for node in nodes)) + 16,
            height=max(frame.top + frame.height, *(node.top + _HEIGHT for node in nodes)) + 16,
            text="; ".join(canvas.words) or frame.text,
        )
    ]


def _layers(groups: Sequence[TaskGroup]) -> dict[str, int]:
    """Return the column of each group: one more than that of the last group it waits for."""
    waits = {group.name: [item["group"] for item in group.depends_on] for group in groups}
    layers: dict[str, int] = {}

    def layer_of(name: str) -> int:
        if name not in layers:
            layers[name] = max((layer_of(other) + 1 for other in waits[name]), default=0)
        return layers[name]

    for name in waits:
        layer_of(name)
    return layers


def _frame(job: Job, nodes: Iterable[Node]) -> Frame:
    placed = list(nodes)
    left, top = min(node.left for node in placed) - 14, min(node.top for node in placed) - 22
    right = max(node.left for node in placed) + _WIDTH + 14
    bottom = max(node.top for node in placed) + _HEIGHT + 12
    text = "gang: the minimum of each group starts together" if job.coscheduled else "this job"
    return Frame(left, top, right - left, bottom - top, text)


def _status(item: JobDependency) -> tuple[str, str]:
    """Return the text of a dependency, and the class of its state."""
    if item.failed_at is not None:
        return f"{item.until}: failed", "cellrun-edge-failed"
    return (f"{item.until}: met", "") if item.met_at else (item.until, "cellrun-edge-open")


def _job_node(job: Job | None, name: str) -> Node:
    if job is None:
        return Node(shortened(name, _NAME_CHARS), "deleted", "")
    state = TaskState(job.state)
    address = reverse("admin:controlplane_job_change", args=[job.pk])
    bar = [(0.0, float(_WIDTH), COLOURS[state])]
    return Node(shortened(str(job), _NAME_CHARS), state.name.lower(), address, bar)


def _group_node(job: Job, group: TaskGroup) -> Node:
    _, address = list_link("task", "", job__id__exact=job.pk, group__id__exact=group.pk)
    tasks = "1 task" if group.task_count == 1 else f"{group.task_count} tasks"
    has_minimum = job.coscheduled and group.min_available != group.task_count
    note = f"{tasks}, minimum {group.min_available}" if has_minimum else tasks
    return Node(
        shortened(group.name, _NAME_CHARS), note, address, _parts(dict(enumerate(group.counts)))
    )


def _parts(counts: Mapping[int, int]) -> list[tuple[float, float, str]]:
    whole, left, parts = sum(counts.values()) or 1, 0.0, []
    for state, colour in COLOURS.items():
        width = _WIDTH * counts.get(state, 0) / whole
        if width:
            parts.append((round(left, 2), round(width, 2), colour))
        left += width
    return parts
