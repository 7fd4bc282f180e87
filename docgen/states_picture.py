"""Generate docs/images/states.svg, a task's transitions, and job.svg, the state of its job."""

from collections.abc import Iterable
from textwrap import wrap
from xml.sax.saxutils import escape

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.states import ACTIVE, COLOURS, RetryBudget
from controlplane.domain.state.transitions import TRANSITIONS, BackoffKind, Event, TransitionRule
from docgen.rollup_rules import RULES

BOX_WIDTH, BOX_HEIGHT = 170, 40
LINE = 35  # characters that fit between two boxes
# The upper left corner of each state's box.
PLACES = {
    S.PENDING: (30, 60),
    S.ASSIGNED: (385, 70),
    S.BUILDING: (385, 150),
    S.RUNNING: (385, 230),
    S.SUCCEEDED: (800, 50),
    S.FAILED: (800, 140),
    S.WORKER_FAILED: (800, 230),
    S.PREEMPTED: (800, 310),
    S.UNSCHEDULABLE: (30, 420),
    S.KILLED: (385, 420),
}

HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 500" role="img"
  aria-label="The states of a task and what leads from one to the other">
<!-- Written by `make docs` from controlplane/domain/state/transitions.py; do not edit. -->
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
<rect class="back" width="1000" height="500" rx="8"/>
<rect class="frame" x="360" y="30" width="220" height="260" rx="10"/>
<text x="470" y="52">active: on a cell</text>"""


HEAD_OF_JOB = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 620 HEIGHT" role="img"
  aria-label="A job's state: the first rule that holds decides">
<!-- Written by `make docs` from controlplane/domain/state/rollup.py; do not edit. -->
<style>
  text { font: 12px system-ui, sans-serif; fill: #57606a; text-anchor: middle; }
  .rule { text-anchor: start; font-size: 13px; }
  .name { font-weight: 600; font-size: 13px; fill: #ffffff; }
  .back { fill: #ffffff; } .frame { fill: #f6f8fa; stroke: #8c959f; }
  .arrow { fill: none; stroke: #8c959f; stroke-width: 1.5; marker-end: url(#head); }
  #head path { fill: #8c959f; }
  @media (prefers-color-scheme: dark) {
    text { fill: #9da7b1; } .back { fill: #0d1117; } .frame { fill: #161b22; }
  }
</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"
  orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z"/></marker></defs>
<rect class="back" width="620" height="HEIGHT" rx="8"/>"""


def targets(rule: TransitionRule) -> tuple[S, ...]:
    """Return the next states of a rule, first the one while the budget lasts."""
    if rule.exhausts:
        return (rule.task,)
    if rule.budget or is_charged_later(rule):
        return (S.PENDING, rule.task)
    return (S.PENDING,) if rule.requeue else (rule.task,)


def is_charged_later(rule: TransitionRule) -> bool:
    """Return whether the rule is free at first and charged to the system budget on repetition."""
    return rule.requeue and rule.wait is BackoffKind.SYSTEM


def draw() -> str:
    """Return the picture of a task's transitions."""
    active, pending = list(ACTIVE), [S.PENDING]
    parts = [
        HEAD,
        _arrow("M200 80 H383", 280, 72, _events(pending, S.ASSIGNED)),
        _arrow("M115 60 V20 H885 V48", 690, 14, _events(pending, S.SUCCEEDED)),
        _arrow("M360 200 H165 V102", 262, 218, ["retried after", *_again()], below=True),
        _arrow("M60 100 V418", 152, 410, _events(pending, S.UNSCHEDULABLE)),
        _arrow("M115 100 V380 H350 V440 H383", 280, 395, _events(pending, S.KILLED)),
        _arrow("M470 290 V418", 505, 365, _events(active, S.KILLED)),
        _arrow("M470 110 V148", 510, 134, _events([S.ASSIGNED], S.BUILDING)),
        _arrow("M470 190 V228", 506, 214, _events([S.BUILDING], S.RUNNING)),
        _arrow("M580 70 H798", 690, 62, _events(active, S.SUCCEEDED)),
        _arrow(
            "M580 160 H798", 690, 136, [_budget(RetryBudget.FAILURE), _budget(RetryBudget.SYSTEM)]
        ),
        _arrow("M580 250 H798", 690, 226, [*_broken_gangs(), _budget(RetryBudget.PREEMPTION)]),
        _arrow(
            "M560 290 V330 H798",
            680,
            347,
            [_budget(RetryBudget.PREEMPTION, S.PREEMPTED)],
            below=True,
        ),
        *_legend(),
        *(_box(state) for state in PLACES),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _events(sources: Iterable[S], target: S) -> list[str]:
    """Return the events from `sources` to `target` that depend on no budget, in order."""
    found = set(sources)
    events = [
        _word(event)
        for event in Event
        if any(
            name is event and state in found and targets(rule) == (target,)
            for (state, name), rule in TRANSITIONS.items()
        )
    ]
    return [", ".join(events)]


def _word(event: Event) -> str:
    return event.value.replace("_", " ")


def _charged(budget: RetryBudget, target: S | None = None) -> list[str]:
    """Return the events charged to `budget`; with `target`, those ending there once spent."""
    rules = [(event, rule) for (_, event), rule in TRANSITIONS.items()]
    paid = {
        event
        for event, rule in rules
        if rule.budget is budget and not rule.exhausts and target in (None, rule.task)
    }
    if budget is RetryBudget.SYSTEM:
        paid |= {event for event, rule in rules if is_charged_later(rule)}
    return [_word(event) for event in Event if event in paid]


def _budget(budget: RetryBudget, target: S = S.WORKER_FAILED) -> str:
    only = target if budget is RetryBudget.PREEMPTION else None
    return f"{' or '.join(_charged(budget, only))}: {budget.value} budget used up"


def _again() -> list[str]:
    """Return the events that requeue a task: by budget, then the free ones."""
    lines = [f"{', '.join(_charged(budget))} ({budget.value})" for budget in RetryBudget]
    free = [
        event
        for event in Event
        if any(
            name is event and rule.requeue and not is_charged_later(rule)
            for (_, name), rule in TRANSITIONS.items()
        )
    ]
    return [*lines, f"{', '.join(_word(event) for event in free)} (free)"]


def _broken_gangs() -> list[str]:
    return [
        _word(event)
        for event in Event
        if any(name is event and rule.exhausts for (_, name), rule in TRANSITIONS.items())
    ]


def _legend() -> list[str]:
    notes = [
        "refused, start expired: free,",
        "from the 5th consecutive one the system budget",
    ]
    return [
        f'<text x="790" y="{440 + 18 * n}">{escape(text)}</text>' for n, text in enumerate(notes)
    ]


def draw_job() -> str:
    """Return the picture of a job's state: the first rule that holds, from the top."""
    row, height = 40, 40 * len(RULES) + 40
    parts = [
        HEAD_OF_JOB.replace("HEIGHT", str(height)),
        f'<path class="arrow" d="M40 24 V{height - 22}"/>',
    ]
    for number, rule in enumerate(RULES):
        y = 30 + row * number
        parts += [
            f'<circle cx="40" cy="{y + 14}" r="12" class="frame"/>',
            f'<text x="40" y="{y + 18}">{number + 1}</text>',
            f'<text class="rule" x="70" y="{y + 18}">{escape(rule.short)}</text>',
            f'<path class="arrow" d="M385 {y + 14} H438"/>',
            f'<rect x="440" y="{y}" width="150" height="28" rx="6" fill="{COLOURS[rule.state]}"/>',
            f'<text class="name" x="515" y="{y + 19}">{rule.state.name}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _arrow(path: str, x: int, y: int, texts: Iterable[str], *, below: bool = False) -> str:
    """Return an arrow with its text, which ends just above it, or begins at `y` if `below` it."""
    lines = [line for text in texts for line in wrap(text, LINE)]
    first = y if below else y - 15 * max(len(lines) - 2, 0)
    drawn = [
        f'<text x="{x}" y="{first + 15 * number}">{escape(line)}</text>'
        for number, line in enumerate(lines)
    ]
    return "\n".join([f'<path class="arrow" d="{path}"/>', *drawn])


def _box(state: S) -> str:
    x, y = PLACES[state]
    return (
        f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"'
        f' fill="{COLOURS[state]}"/>\n'
        f'<text class="name" x="{x + BOX_WIDTH // 2}" y="{y + 25}">{state.name}</text>'
    )
