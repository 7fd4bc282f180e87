"""docs/images/states.svg: the life of a task, its arrows labelled from the table of transitions."""

from collections.abc import Iterable
from xml.sax.saxutils import escape

from controlplane.contract.states import TaskState as S
from controlplane.domain.states import ACTIVE, COLOURS
from controlplane.domain.transitions import TRANSITIONS, Event, Rule, Wait

NOT_YET = frozenset(
    {
        Event.CACHE_HIT,
        Event.REJECTED,
        Event.PREEMPTED,
        Event.HEALTH_FAILED,
        Event.GANG_BROKEN,
        Event.GANG_BOUNCED,
    }
)
"""Events that the table knows and that nothing raises in this version."""

BOX_WIDTH, BOX_HEIGHT = 170, 40
# The upper left corner of each state's box.
PLACES = {
    S.PENDING: (30, 60),
    S.ASSIGNED: (385, 70),
    S.BUILDING: (385, 150),
    S.RUNNING: (385, 230),
    S.SUCCEEDED: (800, 50),
    S.FAILED: (800, 140),
    S.WORKER_FAILED: (800, 230),
    S.UNSCHEDULABLE: (30, 370),
    S.KILLED: (385, 370),
}

HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 440" role="img"
  aria-label="The states of a task and what leads from one to the other">
<!-- Written by `make docs` from controlplane/domain/transitions.py; do not edit. -->
<style>
  text { font: 12px system-ui, sans-serif; fill: #57606a; text-anchor: middle; }
  .name { font-weight: 600; font-size: 13px; fill: #ffffff; }
  .back { fill: #ffffff; } .frame { fill: #f6f8fa; stroke: #8c959f; stroke-dasharray: 4 3; }
  .arrow { fill: none; stroke: #8c959f; stroke-width: 1.5; marker-end: url(#head); }
  #head path { fill: #8c959f; }
  @media (prefers-color-scheme: dark) {
    text { fill: #9da7b1; } .back { fill: #0d1117; } .frame { fill: #161b22; }
  }
</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"
  orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z"/></marker></defs>
<rect class="back" width="1000" height="440" rx="8"/>
<rect class="frame" x="360" y="30" width="220" height="260" rx="10"/>
<text x="470" y="52">active: on a cell</text>"""


def targets(rule: Rule) -> tuple[S, ...]:
    """What a task may become by a row of the table: first what while the budget lasts."""
    if rule.budget or is_charged_later(rule):
        return (S.PENDING, rule.task)
    return (S.PENDING,) if rule.requeue else (rule.task,)


def is_charged_later(rule: Rule) -> bool:
    """Refusals are free at first, and charged to the system when they go on."""
    return rule.requeue and rule.wait is Wait.SYSTEM


def draw() -> str:
    """The whole picture."""
    active, pending = list(ACTIVE), [S.PENDING]
    exhausted = ["no retry left, after"]
    parts = [
        HEAD,
        _arrow("M200 80 H383", 280, 72, _events(pending, S.ASSIGNED)),
        _arrow("M360 200 H165 V102", 263, 176, _events(active, S.PENDING), ["tried again, after"]),
        _arrow("M60 100 V368", 118, 352, _events(pending, S.UNSCHEDULABLE)),
        _arrow("M115 100 V325 H330 V390 H383", 240, 318, _events(pending, S.KILLED)),
        _arrow("M470 290 V368", 505, 335, _events(active, S.KILLED)),
        _arrow("M470 110 V148", 510, 134, _events([S.ASSIGNED], S.BUILDING)),
        _arrow("M470 190 V228", 506, 214, _events([S.BUILDING], S.RUNNING)),
        _arrow("M580 70 H798", 690, 62, _events(active, S.SUCCEEDED)),
        _arrow("M580 160 H798", 690, 136, _events(active, S.FAILED), exhausted),
        _arrow("M580 250 H798", 690, 226, _events(active, S.WORKER_FAILED), exhausted),
        *(_box(state) for state in PLACES),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _events(sources: Iterable[S], target: S) -> list[str]:
    """What leads from one of `sources` to `target`, in the table's order."""
    found = set(sources)
    return [
        event.value.replace("_", " ")
        for event in Event
        if event not in NOT_YET
        and any(
            name is event and state in found and target in targets(rule)
            for (state, name), rule in TRANSITIONS.items()
        )
    ]


def _arrow(path: str, x: int, y: int, events: list[str], before: Iterable[str] = ()) -> str:
    lines = [*before, *_broken(events)]
    first = y - 15 * (len(lines) - 2) if len(lines) > 2 else y
    texts = [
        f'<text x="{x}" y="{first + 15 * number}">{escape(line)}</text>'
        for number, line in enumerate(lines)
    ]
    return "\n".join([f'<path class="arrow" d="{path}"/>', *texts])


def _broken(words: list[str]) -> list[str]:
    """The words in lines that fit between two boxes."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(word) < 30:
            lines[-1] += f", {word}"
        else:
            lines.append(word)
    return lines


def _box(state: S) -> str:
    x, y = PLACES[state]
    return (
        f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"'
        f' fill="{COLOURS[state]}"/>\n'
        f'<text class="name" x="{x + BOX_WIDTH // 2}" y="{y + 25}">{state.name}</text>'
    )
