"""Counts by state are links to what they count, and lists are filtered by state with an index."""

import re
from html import unescape
from itertools import chain
from urllib.parse import urlsplit

import pytest
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.states import ATTEMPT_STATES, COLOURS, UNSUCCESSFUL
from controlplane.models import (
    Attempt,
    AuditLine,
    CacheEntry,
    Callback,
    Job,
    OneOff,
    Task,
    TaskGroup,
)
from tests.integration.admin.rows import add_attempts
from tests.integration.admin.test_job_tasks import job_of, names_in, shown
from tests.integration.admin.test_pages import address_of, words

pytestmark = pytest.mark.django_db

STATES = [S.FAILED] * 3 + [S.SUCCEEDED] * 2 + [S.RUNNING, S.PENDING]


def chips_in(html: str) -> list[tuple[str, str]]:
    """The texts and addresses of the first chips of a page."""
    [chips, *_] = re.findall('<div class="cellrun-chips".*?</div>', html, flags=re.DOTALL)
    found = re.findall(r'<a href="([^"]*)"[^>]*>([^<]*)</a>', chips)
    return [(text, unescape(address)) for address, text in found]


def html_of(browser: Client, address: str) -> str:
    answer = browser.get(address)
    assert answer.status_code == 200
    return answer.content.decode()


def test_each_count_of_a_group_links_to_the_tasks_that_it_counts(operator: Client) -> None:
    job = job_of(STATES)
    other = job_of([S.FAILED] * 4)
    Task.objects.filter(job=other).update(job=job)  # a second group of the job
    TaskGroup.objects.filter(job=other).update(job=job, name="other")
    html = html_of(operator, address_of(Job, job))
    row = re.search(r"<tr>\s*<td>main</td>.*?</tr>", html, flags=re.DOTALL)
    assert row is not None
    counts = re.findall(r'href="([^"]*)"><b>(\d+)</b> (\w+)</a>', row[0])
    assert [(number, name) for _, number, name in counts] == [
        ("1", "pending"),
        ("1", "running"),
        ("2", "succeeded"),
        ("3", "failed"),
    ]
    for address, number, name in counts:
        listed = operator.get(unescape(address)).context["cl"].result_list
        assert {task.job_id for task in listed} == {job.pk}
        assert {task.group.name for task in listed} == {"main"}
        assert [task.state for task in listed] == [S[name.upper()]] * int(number)


def test_the_bar_of_a_group_has_the_colours_and_shares_of_its_states(operator: Client) -> None:
    html = html_of(operator, address_of(Job, job_of(STATES)))
    bar = re.search(r'<span class="cellrun-bar" aria-hidden="true">(.*?)</span></span>', html)
    assert bar is not None
    parts = re.findall(r"--status: (#\w+); flex-grow: (\d+)", bar[1])
    assert parts == [
        (COLOURS[S.PENDING], "1"),
        (COLOURS[S.RUNNING], "1"),
        (COLOURS[S.SUCCEEDED], "2"),
        (COLOURS[S.FAILED], "3"),
    ]


def test_the_tasks_of_a_job_are_filtered_by_chips(operator: Client) -> None:
    job = job_of(STATES)
    html = shown(operator, job)
    assert [text for text, _ in chips_in(html)] == [
        "all 7",
        "pending 1",
        "running 1",
        "succeeded 2",
        "failed 3",
    ]
    assert len(names_in(html)) == 7
    failed = dict(chips_in(html))["failed 3"]
    assert names_in(shown(operator, job, failed.partition("#")[0])) == [
        "main.0",
        "main.1",
        "main.2",
    ]
    assert len(names_in(shown(operator, job, "?state=nonsense"))) == 7
    assert "no task in this state" in shown(operator, job, "?state=killed")


def test_the_pages_of_filtered_tasks_keep_the_filter(operator: Client) -> None:
    job = job_of([S.FAILED] * 120 + [S.SUCCEEDED] * 5)
    html = shown(operator, job, "?state=failed")
    assert "1 to 25 of 120" in words(html)
    link = re.search(r'href="([^"]*)">next<', html)
    assert link is not None
    second = shown(operator, job, unescape(link[1]).partition("#")[0])
    assert names_in(second) == [f"main.{index}" for index in range(25, 50)]


@pytest.mark.parametrize(
    ("model", "states"),
    [(Task, set(S)), (Attempt, ATTEMPT_STATES), (Job, {S.RUNNING, S.FAILED})],
)
def test_lists_have_a_chip_for_each_state(
    operator: Client, model: type[Task | Attempt | Job], states: set[S]
) -> None:
    job = job_of(list(S))
    Job.objects.filter(pk=job.pk).update(state=S.FAILED, finished_at=job.created_at)
    chips = chips_in(html_of(operator, address_of(model)))
    assert chips[0][0] == "All"
    addresses = {S[text.upper()]: address for text, address in chips[1:]}
    assert states <= addresses.keys()
    for state in states:
        listed = operator.get(f"{address_of(model)}{addresses[state]}").context["cl"]
        rows = list(listed.result_list)
        assert {row.pk for row in rows} == set(
            model._default_manager.filter(state=state).values_list("pk", flat=True)
        )
    assert not operator.get(f"{address_of(model)}?state__exact=77").context["cl"].result_list


def test_a_chip_keeps_the_other_filters(operator: Client) -> None:
    job = job_of(STATES)
    job_of(STATES)
    chips = chips_in(html_of(operator, f"{address_of(Task)}?job__id__exact={job.pk}"))
    address = dict(chips)["failed"]
    assert f"job__id__exact={job.pk}" in urlsplit(address).query
    listed = operator.get(f"{address_of(Task)}{address}").context["cl"].result_list
    assert [task.job_id for task in listed] == [job.pk] * 3


def test_filters_of_open_tasks_combine_with_states_pools_and_bands(operator: Client) -> None:
    others = set(Task.objects.values_list("pk", flat=True))
    job = job_of([S.PENDING] * 2 + [S.SUCCEEDED])
    pool, band = job.pool.name, int(job.band)

    def listed(**query: object) -> list[S]:
        found = operator.get(address_of(Task), query).context["cl"].result_list
        return [S(task.state) for task in found if task.pk not in others]

    waiting = [S.PENDING] * 2
    assert listed(open="pending", state__exact=int(S.PENDING)) == waiting
    assert listed(open="pending", state__exact=int(S.SUCCEEDED)) == []
    assert listed(pool=pool, band=band) == waiting
    assert listed(pool=pool, band=band, state__exact=int(S.PENDING)) == waiting
    assert listed(pool=pool, band=band, state__exact=int(S.SUCCEEDED)) == []
    for wrong in ({"pool": "none"}, {"band": 99}, {"band": "x"}, {"band": "²"}, {"band": "9" * 30}):
        assert listed(open="pending", **wrong) == []
    [running] = Task.objects.filter(job=job_of([S.RUNNING]))
    add_attempts(running, [S.RUNNING])
    assert listed(open="held", pool=pool, band=band) == [S.RUNNING]
    assert listed(open="held", pool="none", band=band) == []
    assert listed(open="held", pool=pool, band="x") == []


def test_pages_of_the_waiting_tasks_of_a_pool_list_each_of_them_once(operator: Client) -> None:
    job = job_of([S.PENDING] * 60 + [S.SUCCEEDED])
    Task.objects.exclude(job=job).delete()
    waiting = list(Task.objects.filter(state=S.PENDING).order_by("pk").values_list("pk", flat=True))

    def listed(**query: object) -> list[list[int]]:
        pages = []
        for number in (1, 2, 3):
            found = operator.get(address_of(Task), {"pool": "default", "p": number, **query})
            assert found.context["cl"].result_count == 60
            pages.append([task.pk for task in found.context["cl"].result_list])
        return pages

    assert list(chain(*listed())) == waiting[::-1]
    assert [len(page) for page in listed()] == [25, 25, 10]
    assert list(chain(*listed(o="0"))) == waiting
    everything = operator.get(address_of(Task), {"pool": "default", "all": ""}).context["cl"]
    assert everything.result_count == 60
    beyond = operator.get(address_of(Task), {"pool": "default", "p": 4})
    assert beyond.status_code == 302  # as beyond the pages of any list


@pytest.mark.parametrize("model", [Task, Attempt, Job, Callback, AuditLine, CacheEntry, OneOff])
def test_long_lists_are_sorted_by_their_keys_only(operator: Client, model: type[Model]) -> None:
    html = html_of(operator, address_of(model))
    columns = set(re.findall(r"[?&;]o=-?(\d+)", html))
    changelist = operator.get(address_of(model)).context["cl"]
    names = [str(changelist.list_display[int(column)]) for column in columns]
    keys = {changelist.get_ordering_field(name) for name in names}
    assert columns
    assert keys <= {"pk", model._meta.pk.attname}  # type: ignore[union-attr]
    assert "_facets" not in html
    with_counts = operator.get(f"{address_of(model)}?_facets=True").context["cl"]
    assert not with_counts.add_facets


@pytest.mark.parametrize(
    ("model", "index"), [(Task, "task_unsuccessful"), (Attempt, "attempt_unsuccessful")]
)
@pytest.mark.parametrize("state", sorted(UNSUCCESSFUL & ATTEMPT_STATES))
def test_unsuccessful_rows_are_found_by_an_index(
    operator: Client, model: type[Task | Attempt], index: str, state: S
) -> None:
    """The list of a state reads only rows in that state, also among a million others."""
    job_of([S.SUCCEEDED] * 1000)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE controlplane_task, controlplane_job, controlplane_attempt")
    with CaptureQueriesContext(connection) as caught:
        operator.get(f"{address_of(model)}?state__exact={state:d}")
    table = model._meta.db_table
    listed = [item["sql"] for item in caught if f'FROM "{table}"' in item["sql"]]
    assert listed
    with connection.cursor() as cursor:
        # Few rows make each index worthless; the plan shows whether this one applies.
        cursor.execute("SET LOCAL enable_seqscan = off")
        plans = []
        for statement in listed:
            cursor.execute(f"EXPLAIN {statement}")
            plans.append("\n".join(line for (line,) in cursor.fetchall()))
    assert any(index in plan for plan in plans), plans


def test_titles_name_the_rows_and_not_an_action(operator: Client) -> None:
    for model, title in ((Job, "Jobs"), (Attempt, "Attempts")):
        head = re.search("<title>(.*?)</title>", html_of(operator, address_of(model)), re.DOTALL)
        assert head is not None
        assert words(head[1]) == f"{title} | Cellrun"


def test_the_path_in_the_header_keeps_the_case_of_names(operator: Client) -> None:
    job = job_of(STATES)
    header = html_of(operator, address_of(Job, job)).partition('id="live"')[0]
    assert f"sweep ({job.pk})" in words(header)
    assert "Sweep" not in header
