"""The graph of a job's groups and of the jobs that it depends on."""

import re
from html import unescape

import pytest
from django.test import Client

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.states import COLOURS
from controlplane.models import Job, JobDependency, TaskGroup
from tests.integration.admin.rows import NOW
from tests.integration.admin.test_job_tasks import job_of
from tests.integration.admin.test_pages import address_of, page, words

pytestmark = pytest.mark.django_db


def graph_of(browser: Client, job: Job) -> str:
    html = browser.get(address_of(Job, job)).content.decode()
    [section] = re.findall(r'<section [^>]*id="graph">.*?</section>', html, flags=re.DOTALL)
    return unescape(section)


def add_group(job: Job, name: str, *waits: tuple[str, str]) -> TaskGroup:
    group = TaskGroup.objects.filter(job=job).earliest("position")
    group.pk, group.name, group.position = None, name, TaskGroup.objects.filter(job=job).count()
    group.depends_on = [{"group": other, "until": until} for other, until in waits]
    group.save()
    return group


def place_of(html: str, name: str) -> int:
    """The left edge of the node with a text."""
    nodes = re.findall(r'<svg x="(\d+)".*?</svg>', html, flags=re.DOTALL)
    texts = re.findall(r'<svg x="\d+".*?</svg>', html, flags=re.DOTALL)
    [found] = [
        int(left) for left, text in zip(nodes, texts, strict=True) if name in words(text).split()
    ]
    return found


def test_groups_stand_right_of_those_that_they_wait_for(operator: Client) -> None:
    job = job_of([S.SUCCEEDED, S.FAILED])
    add_group(job, "train", ("main", "succeeded"))
    add_group(job, "report", ("train", "finished"), ("main", "started"))
    html = graph_of(operator, job)
    assert place_of(html, "main") < place_of(html, "train") < place_of(html, "report")
    assert html.count('class="cellrun-edge ') == 3
    assert "train waits until main has succeeded" in html
    assert "report waits until train has finished" in html
    assert f'fill="{COLOURS[S.FAILED]}"' in html
    group = TaskGroup.objects.get(job=job, name="train")
    assert f"job__id__exact={job.pk}&group__id__exact={group.pk}" in html


def test_jobs_stand_before_and_after_with_the_states_of_dependencies(operator: Client) -> None:
    job, first, last = job_of([S.PENDING]), job_of([S.SUCCEEDED]), job_of([S.PENDING])
    met = {"on_name": "x", "until": "succeeded", "met_at": NOW}
    JobDependency.objects.create(job=job, on_job=first, **met)
    JobDependency.objects.create(job=job, on_job_id=999_999, on_name="gone", until="finished")
    JobDependency.objects.create(job=last, on_job=job, on_name="x", until="settled")
    Job.objects.filter(pk=job.pk).update(is_watched=True)
    html = graph_of(operator, job)
    assert place_of(html, f"({first.pk})") < place_of(html, "main") < place_of(html, f"({last.pk})")
    assert place_of(html, "gone") == place_of(html, f"({first.pk})")
    assert "succeeded: met" in words(html)
    assert "gone deleted" in words(html)
    assert f'href="{address_of(Job, last)}"' in html
    assert html.count("cellrun-edge-open") == 2


def test_a_gang_is_framed(operator: Client) -> None:
    job = job_of([S.PENDING] * 4)
    TaskGroup.objects.filter(job=job).update(min_available=3)
    Job.objects.filter(pk=job.pk).update(coscheduled=True)
    shown = words(graph_of(operator, job))
    assert "gang: the minimum of each group starts together" in shown
    assert "4 tasks, minimum 3" in shown


def test_a_job_without_dependencies_and_one_with_many_groups_have_no_graph(
    operator: Client,
) -> None:
    job = job_of([S.PENDING])
    assert 'id="graph"' not in page(operator, address_of(Job, job))
    for number in range(30):
        add_group(job, f"g{number}", ("main", "started"))
    assert 'id="graph"' not in page(operator, address_of(Job, job))


def test_names_in_the_graph_are_escaped(operator: Client) -> None:
    job = job_of([S.PENDING])
    JobDependency.objects.create(job=job, on_job_id=999, on_name="<script>x", until="finished")
    raw = operator.get(address_of(Job, job)).content.decode()
    assert "<script>x" not in raw
    assert "&lt;script&gt;x" in raw
