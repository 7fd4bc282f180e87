"""The output of an attempt on its page, its later parts and the whole; usage, and commands."""

import re
from html import unescape
from typing import Any

import pytest
import typer
from django.test import Client

from cellrun.cli import app
from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, Job, Task
from controlplane.storage.folder import append_log
from tests.integration.admin.rows import NOW
from tests.integration.admin.test_job_tasks import job_of
from tests.integration.admin.test_pages import address_of, page, words

pytestmark = pytest.mark.django_db


def attempt_in(state: S) -> Attempt:
    return Attempt.objects.get(task__job=job_of([state]))


def output_address(attempt: Attempt, stream: str = "stderr") -> str:
    return f"/admin/controlplane/attempt/{attempt.pk}/output/{stream}"


def test_output_stands_above_the_history_with_links_to_all_of_it(operator: Client) -> None:
    attempt = attempt_in(S.FAILED)
    append_log(attempt.pk, "stderr", offset=0, content=b"line\n" * 300)
    html = page(operator, address_of(Attempt, attempt))

    assert html.index("<h2>Output") < html.index("<h2>History")
    assert "stderr the last 200 lines" in words(html)
    assert f'href="{output_address(attempt)}" download' in html
    assert f'href="{output_address(attempt, "stdout")}" download' not in html


def test_only_the_output_of_an_unreleased_attempt_is_followed(operator: Client) -> None:
    assert "data-followed" in page(operator, address_of(Attempt, attempt_in(S.RUNNING)))
    assert "data-followed" not in page(operator, address_of(Attempt, attempt_in(S.FAILED)))


def test_a_download_has_the_whole_stream(operator: Client) -> None:
    attempt = attempt_in(S.RUNNING)
    content = b"\xff\x00 0123456789\n" * 50_000
    append_log(attempt.pk, "stderr", offset=0, content=content)
    answer: Any = operator.get(output_address(attempt))
    assert b"".join(answer.streaming_content).replace(b"\n", b"") == content.replace(b"\n", b"")
    assert answer["Content-Disposition"] == f'attachment; filename="{attempt.pk}.stderr.txt"'
    assert answer["Content-Type"].startswith("text/plain")
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in answer["Content-Security-Policy"]


def test_later_output_is_read_by_its_offset(operator: Client) -> None:
    attempt = attempt_in(S.RUNNING)
    append_log(attempt.pk, "stderr", offset=0, content="für\n".encode())
    html = page(operator, address_of(Attempt, attempt))
    [(address, offset)] = re.findall(r'data-stream="([^"]*/stderr)" data-next="(\d+)"', html)
    assert operator.get(f"{address}?after={offset}").content == b""
    append_log(attempt.pk, "stderr", offset=5, content=b"second\n")
    later = operator.get(f"{address}?after={offset}")
    assert later.content == b"second\n"
    assert later["X-Next-Cursor"] == "12"
    assert operator.get(f"{address}?after=99999999999999999999").content == b""


def test_unknown_streams_and_attempts_are_not_found(operator: Client) -> None:
    attempt = attempt_in(S.RUNNING)
    assert operator.get(output_address(attempt, "secrets")).status_code == 404
    other = output_address(attempt).replace(str(attempt.pk), "0" * 8 + str(attempt.pk)[8:])
    assert operator.get(other).status_code == 404


def test_output_of_a_deleted_job_is_not_readable(operator: Client) -> None:
    attempt = attempt_in(S.FAILED)
    append_log(attempt.pk, "stderr", offset=0, content=b"line\n")
    Job.objects.filter(pk=attempt.job_id).update(deleted_at=NOW)
    assert operator.get(output_address(attempt)).status_code == 404


def usage_rows(browser: Client, attempt: Attempt) -> list[str]:
    html = page(browser, address_of(Attempt, attempt))
    [section] = re.findall(r'id="usage">.*?</section>', html, flags=re.DOTALL)
    rows = re.findall(r"<tr>.*?</tr>", section.partition("<tbody>")[2], flags=re.DOTALL)
    return [words(row).replace("\xa0", " ") for row in rows]


def test_usage_is_a_table_beside_the_request(operator: Client) -> None:
    attempt = attempt_in(S.SUCCEEDED)  # it ran for 63 seconds; it requested 0.1 cores and 32 MiB
    attempt.usage = {
        "cpu_seconds": 3.15,
        "memory_peak_mib": 24.5,
        "pulled_bytes": 2048,
        "image_digest": "sha256:ab",
        "steps": {"wait": 61, "pull": 1.5, "create": 0.25},
    }
    attempt.save()
    assert usage_rows(operator, attempt) == [
        "CPU time 3.15 s 0.05 of 0.1",
        "memory peak 24.5 MiB 24 MiB of 32 MiB",
        "pulled for its image 2.0 KiB",
        "image digest sha256:ab",
        "step pull 1.50 s",
        "step create 0.25 s",
        "step wait 1 m 01 s",
    ]


def test_an_attempt_without_usage_has_no_such_section(operator: Client) -> None:
    assert 'id="usage"' not in page(operator, address_of(Attempt, attempt_in(S.FAILED)))


def commands_in(html: str) -> list[str]:
    return re.findall(r'data-copy="(cellrun [^"]*)"', html)


def check_command(line: str) -> None:
    """Parse a command with the parser of the command itself. Raise UsageError."""
    program, name, *arguments = line.split()
    assert program == "cellrun"
    group: Any = typer.main.get_command(app)
    command = group.commands[name]
    command.make_context(name, arguments)


def test_commands_are_those_of_the_state(operator: Client) -> None:
    def names(row: Job | Task | Attempt) -> set[str]:
        lines = [
            line
            for line in commands_in(page(operator, address_of(type(row), row)))
            if "submit" not in line
        ]
        for line in lines:
            check_command(line)
            assert str(row.pk) in line
        return {line.split()[1] for line in lines}

    waiting = job_of([S.PENDING])
    assert names(waiting) == {"job", "logs", "history", "explain", "cancel"}
    ended = job_of([S.FAILED, S.SUCCEEDED])
    Job.objects.filter(pk=ended.pk).update(state=S.FAILED, finished_at=NOW)
    assert names(ended) == {"job", "logs", "history", "retry"}
    assert names(Task.objects.get(job=waiting)) == {"logs", "history", "artifacts", "explain"}
    assert names(attempt_in(S.FAILED)) == {"history", "artifacts"}


def test_the_document_is_copied_as_a_command_without_its_guid(operator: Client) -> None:
    job = job_of([S.SUCCEEDED])
    Job.objects.filter(pk=job.pk).update(spec={"name": "sweep", "guid": "g-1", "command": ["a'b"]})
    [found] = [
        unescape(text)
        for text in re.findall(r'data-copy="([^"]*)"', operator.get(address_of(Job, job)).text)
        if "submit" in text
    ]
    assert found == (
        'cellrun submit - <<\'JOB\'\n{\n  "name": "sweep",\n  "command": [\n    "a\'b"\n  ]\n}\nJOB'
    )
    check_command(found.partition(" <<")[0])
    Job.objects.filter(pk=job.pk).update(spec={"name": "x" * 30_000})
    assert "copy as command" not in page(operator, address_of(Job, job))
