"""`cellrun notifications rule`: which events are reported to which address, and when."""

import re
from typing import Annotated, Any, Literal

import typer

from cellrun.api.paths import names_of
from cellrun.api.session import Session, connect
from cellrun.display.notifications import WEEKDAYS, rule_page
from cellrun.display.output import TABLE, OutputOption, show
from cellrun.display.terminal import agrees
from cellrun.errors import EXIT_FAILED, ApiError, BadInput

_PERIOD = re.compile(r"(\d\d:\d\d)-(\d\d:\d\d)")

RuleName = Annotated[str, typer.Argument(metavar="RULE", help="Name of a rule.")]
Address = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Address to which it reports.")
]
About = Annotated[Literal["alerts", "jobs"] | None, typer.Option(help="Alerts, or ends of jobs.")]
Kinds = Annotated[
    list[str] | None,
    typer.Option(metavar="KIND", help="Only alerts of this kind; repeatable."),
]
OnlyCritical = Annotated[
    bool | None, typer.Option("--only-critical/--all-alerts", help="Only critical alerts.")
]
Projects = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PROJECT",
        help="Only jobs of this project, as name or domain/name; repeatable.",
    ),
]
States = Annotated[
    list[str] | None,
    typer.Option(
        metavar="STATE",
        help="Only jobs that ended in this state, for example failed; repeatable.",
    ),
]
JobName = Annotated[
    str | None,
    typer.Option("--name", metavar="PATTERN", help="Only jobs named so, such as nightly-*."),
]
Label = Annotated[
    str | None,
    typer.Option(metavar="VALUE", help="Only jobs with this value of the label notify."),
]
GroupWait = Annotated[
    int | None,
    typer.Option(metavar="SECONDS", help="From the first event to its message."),
]
GroupInterval = Annotated[
    int | None, typer.Option(metavar="SECONDS", help="Between two messages, at least.")
]
QuietHours = Annotated[
    str | None,
    typer.Option(metavar="BEGIN-END", help="No messages in this time: 22:00-07:00, or none."),
]
QuietZone = Annotated[
    str | None,
    typer.Option(metavar="ZONE", help="Time zone of the quiet hours, such as Europe/Berlin."),
]
QuietDays = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DAY", help="Day on which they begin, mon to sun; repeatable. Default: all."
    ),
]
CriticalPasses = Annotated[
    bool | None,
    typer.Option("--critical-passes/--critical-waits", help="Send critical alerts in quiet hours."),
]
IsEnabled = Annotated[
    bool | None, typer.Option("--enable/--disable", help="Whether it collects and sends.")
]

app = typer.Typer(
    help="Write, show and delete rules of notifications.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("show")
def show_rule(name: RuleName, output: OutputOption = TABLE) -> None:
    """Show a rule (operators)."""
    with connect() as session:
        found = session.notification_rule(name)
    show(output, found, rule_page(found))


@app.command("set")
def set_rule(
    name: RuleName,
    address: Address = None,
    about: About = None,
    kind: Kinds = None,
    only_critical: OnlyCritical = None,
    project: Projects = None,
    state: States = None,
    job_name: JobName = None,
    label: Label = None,
    group_wait: GroupWait = None,
    group_interval: GroupInterval = None,
    quiet_hours: QuietHours = None,
    quiet_zone: QuietZone = None,
    quiet_day: QuietDays = None,
    critical_passes: CriticalPasses = None,
    is_enabled: IsEnabled = None,
    output: OutputOption = TABLE,
) -> None:
    """Create or change a rule (operators). Omitted options keep their values.

    An empty value removes a selection: --project '' selects the jobs of all projects.
    """
    changes = {
        "address": address,
        "about": about,
        "kinds": _list_of(kind),
        "only_critical": only_critical,
        "projects": _list_of(project and ["/".join(names_of(it)) if it else "" for it in project]),
        "states": _list_of(state and [it.upper() for it in state]),
        "name_pattern": job_name,
        "label": label,
        "group_wait_seconds": group_wait,
        "group_interval_seconds": group_interval,
        "critical_passes": critical_passes,
        "enabled": is_enabled,
    }
    with connect() as session:
        present = _find(session, name)
        if present is None and (address is None or about is None):
            raise BadInput(f"there is no rule {name}: a new one needs --address and --about")
        rule = {**(present or {}), **{key: it for key, it in changes.items() if it is not None}}
        quiet = _quiet_hours(rule.get("quiet_hours"), quiet_hours, quiet_zone, quiet_day)
        found = session.put_notification_rule(name, {**rule, "quiet_hours": quiet})
    show(output, found, rule_page(found))


@app.command("delete")
def delete_rule(
    name: RuleName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    output: OutputOption = TABLE,
) -> None:
    """Delete a rule; what it has not reported is not reported (operators)."""
    with connect() as session:
        found = session.notification_rule(name)
        if not yes and not agrees(f"Delete the rule {name}, with events that it has not reported?"):
            raise typer.Exit(EXIT_FAILED)
        session.delete_notification_rule(name)
    show(output, found, f"rule {name} is deleted")


def _find(session: Session, name: str) -> dict[str, Any] | None:
    """Return the fields of a rule, or None if there is none."""
    try:
        return dict(session.notification_rule(name))
    except ApiError as fault:
        if fault.status != 404:
            raise
        return None


def _list_of(values: list[str] | None) -> list[str] | None:
    """Return the values without empty ones; None: the option is omitted."""
    return None if not values else [value for value in values if value]


def _quiet_hours(
    present: dict[str, Any] | None, period: str | None, zone: str | None, days: list[str] | None
) -> dict[str, Any] | None:
    """Return the quiet hours after the changes. Raise BadInput."""
    changes: dict[str, Any] = {}
    if period == "none":
        if zone is not None or days:
            raise BadInput("--quiet-hours none: not together with --quiet-zone or --quiet-day")
        return None
    if period is not None:
        found = _PERIOD.fullmatch(period)
        if found is None:
            raise BadInput(f"--quiet-hours {period}: must be like 22:00-07:00, or none")
        changes["begin"], changes["end"] = found.groups()
    if zone is not None:
        changes["time_zone"] = zone
    if days:
        changes["weekdays"] = [_weekday(day) for day in days if day]
    if present is None and changes and ("begin" not in changes or zone is None):
        raise BadInput("quiet hours need both --quiet-hours and --quiet-zone")
    return {**(present or {}), **changes} or None


def _weekday(day: str) -> int:
    """Return the number of a day, Monday is 0. Raise BadInput."""
    if day.lower() not in WEEKDAYS:
        raise BadInput(f"--quiet-day {day}: must be one of {', '.join(WEEKDAYS)}")
    return WEEKDAYS.index(day.lower())
