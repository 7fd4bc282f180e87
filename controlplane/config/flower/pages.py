"""Pages of Flower that lead to the admin, and that explain workers without remote control.

Templates of this package replace those of Flower with the same name, and may include these as
`flower/NAME`.
"""

from collections.abc import MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from flower.views.tasks import TaskView
from flower.views.workers import WorkerView
from tornado.template import Loader, Template
from tornado.web import HTTPError, authenticated

from controlplane.limits.flower_events import ATTEMPT

_OWN = Path(__file__).parent / "templates"
_OF_FLOWER = "flower/"

ROLES = MappingProxyType(
    {
        "placement": "assigns waiting tasks to cells.",
        "convergence": "acts on time limits and lost cells, and deletes what has expired.",
        "inbox": "applies the messages of cells.",
        "callbacks": "delivers callbacks, and runs hooks.",
        "cell": "runs attempts on its host.",
    }
)
"""What a worker does, by the part of its name before the @."""


@dataclass(frozen=True, slots=True)
class PageLink:
    """A link, of the admin or of Flower."""

    text: str
    url: str


class PageLoader(Loader):
    """Loads own templates before those of Flower in `folder`."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self._folder = Path(folder)

    def resolve_path(self, name: str, parent_path: str | None = None) -> str:
        """Return the name: the templates have no subfolders."""
        return name

    def _create_template(self, name: str) -> Template:
        own = _OWN / name
        path = own if own.exists() else self._folder / name.removeprefix(_OF_FLOWER)
        return Template(path.read_bytes(), name=name, loader=self)


def extend_pages(settings: MutableMapping[str, Any], *, admin_url: str) -> None:
    """Let Flower, which has these `settings`, use the templates and the worker page of here."""

    def admin_links(handler: Any) -> list[PageLink]:
        return list_admin_links(handler, admin_url)

    settings["template_loader"] = PageLoader(settings["template_path"])
    settings["ui_methods"] = {"admin_links": admin_links}
    WorkerView.get = authenticated(_show_worker)


def list_admin_links(handler: Any, admin_url: str) -> list[PageLink]:
    """Return the links to the admin on a page: the overview, and its attempt or cell."""
    links = [PageLink("Cellrun", f"{admin_url}/")]
    subject = handler.path_args[0] if handler.path_args else ""
    if isinstance(handler, TaskView):
        task = handler.application.events.state.tasks.get(subject)
        if task is not None and str(task.name).startswith(f"{ATTEMPT}."):
            url = f"{admin_url}/controlplane/attempt/{quote(subject, safe='')}/change/"
            links.append(PageLink("This attempt", url))
    if isinstance(handler, WorkerView) and subject.startswith("cell@"):
        name = quote(subject.removeprefix("cell@"), safe="")
        links.append(PageLink("This cell", f"{admin_url}/controlplane/cell/?q={name}"))
    return links


def _show_worker(handler: Any, name: str) -> None:
    """Show what events have reported: workers accept no remote control, which Flower would use."""
    state = handler.application.events.state
    worker = state.workers.get(name)
    if worker is None:
        raise HTTPError(404, f"Unknown worker '{name}'")
    seen = max(worker.heartbeats, default=None)
    handler.render(
        "worker.html",
        name=name,
        role=ROLES.get(name.partition("@")[0], ""),
        is_alive=worker.alive,
        seen=seen and datetime.fromtimestamp(seen, UTC).isoformat(" ", "seconds"),
        counts=sorted(state.counter.get(name, {}).items()),
    )
