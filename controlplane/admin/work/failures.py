"""The section "What failed" of a job: unsuccessful tasks by reason, with their last output."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from django.utils.safestring import SafeString

from controlplane.admin.badges import instant, list_link, page_link, state_badge
from controlplane.admin.base import Section
from controlplane.admin.sections.output import OutputTail, find_last_lines
from controlplane.admin.work.attempts import reason_of
from controlplane.domain.state.exit_statuses import with_signal
from controlplane.domain.state.states import OPEN, UNSUCCESSFUL
from controlplane.models import Attempt, Job, Task
from controlplane.queries.pages.failures import (
    FailureGroup,
    RetriedTasks,
    find_failure_groups,
    find_retried_tasks,
)
from controlplane.queries.views.overviews import count_tasks_of_jobs

_SHOWN_REASONS = 8
# Reasons with output: each is one or two reads of the store, which may be remote.
_SHOWN_OUTPUTS = 3
_RETRIED = {
    "failure_count": "open, after failures of the program",
    "system_failure_count": "open, after failures of cells, images or registries",
}


@dataclass(frozen=True, slots=True)
class FailureLine:
    """The tasks that failed for one reason, and the newest of them as the example.

    `detail`: the message of its attempt, if it is not the reason.
    """

    badge: SafeString
    count: tuple[str, str]
    reason: str
    detail: str
    task: SafeString | str
    attempt: SafeString | str
    cell: SafeString | str
    ended: SafeString | str
    output: OutputTail | None


@dataclass(frozen=True, slots=True)
class Failures(Section):
    """Unsuccessful tasks by reason."""

    template: ClassVar[str] = "controlplane/section_failures.html"
    lines: Sequence[FailureLine] = ()


def failures_sections(job: Job, *, shows_output: bool) -> list[Section]:
    """Return the section, or none without failed tasks. `shows_output`: with log lines."""
    counts = count_tasks_of_jobs([job.pk])[job.pk]
    groups = (
        find_failure_groups(job.pk, limit=_SHOWN_REASONS) if UNSUCCESSFUL & counts.keys() else []
    )
    retried = find_retried_tasks(job.pk) if OPEN & counts.keys() else []
    tasks = _load_tasks([*(it.newest_task for it in groups), *(it.newest_task for it in retried)])
    attempts = _load_attempts(tasks.values())
    lines: list[FailureLine] = []
    for group in groups:
        task = tasks.get(group.newest_task)
        attempt = attempts.get(task.attempt_uid) if task else None
        reads = shows_output and attempt is not None and len(lines) < _SHOWN_OUTPUTS
        output = find_last_lines(attempt.pk) if reads and attempt else None
        lines.append(_line(job, group, task, attempt, output))
    lines += (_retried_line(job, it, tasks.get(it.newest_task)) for it in retried)
    if not lines:
        return []
    hidden = groups[0].reasons - len(groups) if groups else 0
    more = list_link("task", f"{hidden} more reasons", job__id__exact=job.pk) if hidden else None
    return [Failures("What failed", anchor="failures", lines=lines, more=more)]


def task_failure_sections(task: Task, *, shows_output: bool) -> list[Section]:
    """Return why a task did not succeed, with the output of its last attempt; none otherwise."""
    if task.state not in UNSUCCESSFUL:
        return []
    attempts = Attempt.objects.select_related("cell").defer("result", "usage", "details")
    attempt = attempts.filter(pk=task.attempt_uid).first() if task.attempt_uid else None
    output = find_last_lines(attempt.pk) if shows_output and attempt is not None else None
    group = FailureGroup(task.state, task.failure_reason, 1, task.pk, 1)
    line = _line(task.job, group, task, attempt, output)
    return [Failures("What failed", anchor="failures", lines=[line])]


def _load_tasks(task_ids: Sequence[int]) -> Mapping[int, Task]:
    found = Task.objects.select_related("group").defer("group__launch")
    return found.in_bulk(task_ids) if task_ids else {}


def _load_attempts(tasks: Iterable[Task]) -> Mapping[Any, Attempt]:
    """Return the last attempt of each task by uid."""
    uids = [task.attempt_uid for task in tasks if task.attempt_uid]
    attempts = Attempt.objects.select_related("cell").defer("result", "usage", "details")
    return attempts.in_bulk(uids) if uids else {}


def _retried_line(job: Job, retried: RetriedTasks, task: Task | None) -> FailureLine:
    """Return the open tasks that failed before, with the newest failed attempt as the example."""
    attempt = None
    if task is not None:
        ended = Attempt.objects.filter(task=task, state__in=UNSUCCESSFUL)
        ended = ended.select_related("cell").defer("result", "usage", "details")
        attempt = ended.order_by("-number").first()
    filters = {"job__id__exact": job.pk, "finished_at__isnull": 1, f"{retried.counter}__gt": 0}
    return FailureLine(
        badge=state_badge(task.state) if task else state_badge(None),
        count=list_link("task", f"{retried.tasks} ×", **filters),
        reason=_RETRIED[retried.counter],
        detail=with_signal(reason_of(attempt)) if attempt else "",
        task=page_link("task", task.pk, f"{task.group.name}.{task.index}") if task else "",
        attempt=page_link("attempt", attempt.pk, f"attempt {attempt.number}") if attempt else "",
        cell=page_link("cell", attempt.cell_id, attempt.cell.name) if attempt else "",
        ended=instant(attempt.finished_at) if attempt else "",
        output=None,
    )


def _line(
    job: Job,
    group: FailureGroup,
    task: Task | None,
    attempt: Attempt | None,
    output: OutputTail | None,
) -> FailureLine:
    text = group.reason or (reason_of(attempt) if attempt else "") or "no reason"
    detail = attempt.message if attempt else ""
    filters = {"job__id__exact": job.pk, "state__exact": group.state}
    return FailureLine(
        badge=state_badge(group.state),
        count=list_link("task", f"{group.tasks} ×", **filters, failure_reason__exact=group.reason),
        reason=with_signal(text),
        detail="" if detail == text else detail,
        task=page_link("task", task.pk, f"{task.group.name}.{task.index}") if task else "",
        attempt=page_link(
            "attempt",
            attempt.pk,
            f"attempt {attempt.number}",
            anchor=output.stream if output else "",
        )
        if attempt
        else "",
        cell=page_link("cell", attempt.cell_id, attempt.cell.name) if attempt else "",
        ended=instant(task.finished_at) if task else "",
        output=output,
    )
