"""The examples are valid jobs, and their expectations distinguish right from wrong results."""

import pytest

from cellrun.documents import Job, Task
from controlplane.spec import parse_job
from examples.expectations import EXPECTATIONS, differences
from examples.run import FOLDER, load_examples
from tests.unit.client.documents import a_job, a_task


@pytest.mark.parametrize("as_process", [False, True])
def test_every_example_is_valid_and_has_an_expectation_for_each_group(as_process: bool) -> None:
    for name, spec in load_examples(as_process=as_process).items():
        job = parse_job(spec)
        assert job.name == name
        assert {group.name for group in job.groups} == EXPECTATIONS[name].groups.keys()
        types = {group.task_type for group in job.groups}
        assert types == {"process" if as_process else "container"}


def test_every_example_file_is_run_except_those_that_need_containers() -> None:
    # A gang needs containers that reach each other: an end-to-end test runs its example.
    assert {path.stem for path in FOLDER.glob("*.yaml")} == EXPECTATIONS.keys() | {"gang"}
    assert EXPECTATIONS.keys() - load_examples(as_process=True).keys() == {"oom"}


def ended_hello() -> tuple[Job, list[Task]]:
    tasks = [
        a_task(
            index=index,
            state="SUCCEEDED",
            exit_code=0,
            attempt_number=1,
            cell_id="cell-1",
            result=f"hello from task {index} of 4 on cell-1\n",
        )
        for index in range(4)
    ]
    return a_job(state="SUCCEEDED"), tasks


def test_successful_run_has_no_differences() -> None:
    job, tasks = ended_hello()
    assert differences("hello", load_examples(as_process=False)["hello"], job, tasks) == []


@pytest.mark.parametrize(
    ("change", "beginning"),
    [
        ({"state": "FAILED"}, "hello/main.3 state: expected 'SUCCEEDED', found 'FAILED'"),
        ({"exit_code": 1}, "hello/main.3 exit code: expected 0, found 1"),
        ({"attempt_number": 2}, "hello/main.3 attempts: expected 1, found 2"),
        ({"result": "hello"}, "hello/main.3 result: expected 'hello from task 3 of 4 on cell-1'"),
    ],
)
def test_each_difference_is_reported(change: dict[str, object], beginning: str) -> None:
    job, tasks = ended_hello()
    tasks[3].update(change)  # type: ignore[typeddict-item]
    [line] = differences("hello", load_examples(as_process=False)["hello"], job, tasks)
    assert line.startswith(beginning)


def test_a_missing_task_is_a_difference() -> None:
    job, tasks = ended_hello()
    [line] = differences("hello", load_examples(as_process=False)["hello"], job, tasks[:3])
    assert line == "hello/main number of tasks: expected 4, found 3"
