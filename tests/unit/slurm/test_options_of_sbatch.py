"""Each option of sbatch, on the command line and in the script, sets what Slurm's means."""

from pathlib import Path
from typing import Any

import pytest

from slurm_commands.arrays import read_array
from slurm_commands.options import Refused
from slurm_commands.request import BATCH_OPTIONS, read_request
from slurm_commands.values import read_mib, read_seconds
from tests.unit.slurm.conftest import Submission


def files_of(document: dict[str, Any]) -> dict[str, str]:
    return {Path(item["path"]).name: item["content"] for item in document["inputs"]}


def test_usual_job_is_one_process_of_one_cpu(submission: Submission) -> None:
    document = submission()
    assert document["task_type"] == "process"
    assert document["resources"] == {"cpu": 1, "memory": "1024Mi"}
    assert document["name"] == "sbatch"
    assert document["guid"] == "sbatch-1"
    assert "timeout_seconds" not in document
    assert "retries" not in document
    assert files_of(document)["script"] == "#!/bin/sh\ntrue\n"


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["-J", "My Job"], "name", "my-job"),
        (["--job-name=x"], "name", "x"),
        (["-p", "gpu"], "pool", "gpu"),
        (["-A", "lab"], "project", "lab"),
        (["-A", "physics/lab"], "domain", "physics"),
        (["--comment", "of rule 3"], "annotation", "of rule 3"),
        (["-c", "4"], "resources", {"cpu": 4, "memory": "4096Mi"}),
        (["--mem=2G"], "resources", {"cpu": 1, "memory": "2048Mi"}),
        (["-c2", "--mem-per-cpu=500"], "resources", {"cpu": 2, "memory": "1000Mi"}),
        (["-t", "90"], "timeout_seconds", 5400),
        (["--gres=gpu:2"], "resources", {"cpu": 1, "memory": "1024Mi", "gpu": 2}),
        (["--gres=gpu"], "resources", {"cpu": 1, "memory": "1024Mi", "gpu": 1}),
        (["-G", "1"], "resources", {"cpu": 1, "memory": "1024Mi", "gpu": 1}),
        (["--gres=none"], "resources", {"cpu": 1, "memory": "1024Mi"}),
        (["--no-requeue"], "retries", {"failure": 0, "preemption": 0, "system": 0}),
        (["--array=0-9"], "replicas", 10),
        (["-a", "1-7:3,20"], "replicas", 4),
        (["--array=0-9"], "max_task_failures", 10),
        (["--array=0-9%2"], "concurrency", {"key": "sbatch-1", "limit": 2}),
        (["--array=0-9%2"], "replicas", 10),
        (["--array=0-9"], "min_available", 10),
        (
            ["-d", "afterok:1:2,afterany:3,after:4"],
            "depends_on",
            [
                {"job": 1, "until": "succeeded"},
                {"job": 2, "until": "succeeded"},
                {"job": 3, "until": "finished"},
                {"job": 4, "until": "started"},
            ],
        ),
        (
            ["-C", "ssd&zone=a"],
            "constraints",
            [{"key": "ssd", "op": "exists"}, {"key": "zone", "op": "eq", "values": ["a"]}],
        ),
        (["--signal=B:USR2@30", "-t", "10"], "stop_signal", "USR2"),
        (["--signal=B:USR2@30", "-t", "10"], "stop_grace_seconds", 30),
        (["--signal=B:12@30", "-t", "10"], "timeout_seconds", 570),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) and value[0] is str else None,
)
def test_option_sets_a_field(
    submission: Submission, words: list[str], field: str, value: object
) -> None:
    assert submission(*words)[field] == value


@pytest.mark.parametrize(
    "words",
    [
        ["-n", "1"],
        ["-N", "1"],
        ["-N", "1-1"],
        ["--ntasks-per-node=1"],
        ["--requeue"],
        ["--exp=ALL"],
    ],
)
def test_option_with_the_only_possible_value_changes_nothing(
    submission: Submission, words: list[str]
) -> None:
    usual, given = submission(), submission(*words)
    assert usual == given


def test_signal_has_no_effect_without_a_time_limit(submission: Submission) -> None:
    assert submission("--signal=B:USR2@30") == submission()


def test_container_has_the_image_the_user_and_its_folders(
    submission: Submission, tmp_path: Path
) -> None:
    document = submission("--container=busybox", "-o", "/shared/logs/%j.txt")
    assert document["image"] == "busybox"
    assert document["mounts"] == [
        {"source": folder, "target": folder, "read_only": False}
        for folder in sorted([str(tmp_path), "/shared/logs"])
    ]
    assert "task_type" not in document
    assert files_of(document)["environment"] == ""


def test_memory_without_an_option_is_the_setting_for_each_cpu(submission: Submission) -> None:
    document = submission("-c", "2", environ={"CELLRUN_SLURM_MEM_PER_CPU": "3G"})
    assert document["resources"]["memory"] == "6144Mi"


def test_lines_of_the_script_set_options_up_to_the_first_command(submission: Submission) -> None:
    script = (
        "#!/bin/bash\n# a comment\n\n#SBATCH -J 'first name' -p gpu # of the lab\n"
        "##SBATCH --mem=1T\n#SBATCH --time=2\necho\n#SBATCH --qos=late\n"
    )
    document = submission(script=script)
    assert document["labels"]["slurm/name"] == "first name"
    assert document["pool"] == "gpu"
    assert document["timeout_seconds"] == 120


def test_command_line_wins_over_the_script(submission: Submission) -> None:
    script = "#!/bin/sh\n#SBATCH -p gpu --no-requeue -c 2\n"
    document = submission("-p", "cpu", "--requeue", script=script)
    assert document["pool"] == "cpu"
    assert "retries" not in document
    assert document["resources"]["cpu"] == 2


def test_script_of_a_file_has_its_name_and_words(submission: Submission, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/bash -e\ntrue\n")
    document = submission("-p", "gpu", "run.sh", "--mem=1", "a b")
    assert document["name"] == "run.sh"
    last = files_of(document)["start"].splitlines()[-1]
    assert last == "exec /bin/bash -e \"$root/script\" --mem=1 'a b'"


def test_wrapped_command_is_a_script(submission: Submission) -> None:
    document = submission("--wrap", "echo $HOME")
    assert document["name"] == "wrap"
    assert files_of(document)["script"] == "#!/bin/sh\necho $HOME\n"


@pytest.mark.parametrize(("word", "expected"), [("--parsable", True), ("--requeue", False)])
def test_parsable_is_reported(word: str, *, expected: bool) -> None:
    _, is_parsable = read_request([word], lambda: "#!/bin/sh\n", {})
    assert is_parsable is expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 300),
        ("5:30", 330),
        ("1:00:00", 3600),
        ("2-12", 216_000),
        ("1-1:30", 91_800),
        ("1-0:0:1", 86_401),
        ("0", None),
        ("UNLIMITED", None),
        ("infinite", None),
    ],
)
def test_time_has_all_forms_of_slurm(text: str, seconds: int | None) -> None:
    assert read_seconds(text) == seconds


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("500", 500),
        ("500M", 500),
        ("1g", 1024),
        ("2T", 2_097_152),
        ("2048K", 2),
        ("1K", 1),
        ("1GB", 1024),
    ],
)
def test_memory_has_all_units_of_slurm(text: str, mib: int) -> None:
    assert read_mib(text, "--mem") == mib


@pytest.mark.parametrize(
    ("text", "indexes"),
    [("3", [3]), ("1-3", [1, 2, 3]), ("0-7:3", [0, 3, 6]), ("1,9,4-5", [1, 9, 4, 5])],
)
def test_array_has_the_indexes_of_its_list(text: str, indexes: list[int]) -> None:
    array = read_array(text)
    assert [array.index_of(position) for position in range(array.count)] == indexes
    assert (array.first, array.last) == (min(indexes), max(indexes))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--qos=late"], "--qos"),
        (["--exclusive"], "--exclusive"),
        (["--mail-user=ann"], "--mail-user"),
        (["--reservation=x"], "--reservation"),
        (["-x", "node1"], "-x"),
        (["-H"], "-H"),
        (["-n", "2"], "--ntasks=2"),
        (["-N", "2"], "--nodes=2"),
        (["--ntasks-per-node=4"], "--ntasks-per-node=4"),
        (["-c", "0"], "--cpus-per-task=0"),
        (["--mem=0"], "--mem=0"),
        (["--mem=many"], "--mem=many"),
        (["--mem=1", "--mem-per-cpu=1"], "--mem-per-cpu"),
        (["--time=soon"], "--time=soon"),
        (["--gres=license:1"], "--gres=license:1"),
        (["--gres=gpu:a100:2"], "--gres=gpu:a100:2"),
        (["--gpus=a100:2"], "--gpus=a100:2"),
        (["--gpus=1", "--gres=gpu"], "--gres"),
        (["--array=1-10%0"], "--array=1-10%0"),
        (["--array=1-10%x"], "--array=1-10%x"),
        (["--array=5-1"], "--array=5-1"),
        (["--array=1,1"], "--array=1,1"),
        (["--array=0-10000"], "--array=0-10000"),
        (["--array=x"], "--array=x"),
        (["--dependency=singleton"], "--dependency=singleton"),
        (["--dependency=afternotok:1"], "--dependency=afternotok:1"),
        (["--dependency=afterok:1?afterok:2"], "--dependency"),
        (["--dependency=after:1+5"], "--dependency=after:1+5"),
        (["--dependency=afterok:1_2"], "--dependency=afterok:1_2"),
        (["--constraint=a|b"], "--constraint=a|b"),
        (["--signal=USR1@10"], "--signal=USR1@10"),
        (["--signal=B:WINCH@10"], "--signal=B:WINCH@10"),
        (["--signal=B:USR1@60", "--time=1"], "--signal=B:USR1@60"),
        (["--export=NONE,A=1"], "--export=NONE,A=1"),
        (["--export=1A"], "--export=1A"),
        (["--export=CELLRUN_TOKEN"], "--export=CELLRUN_TOKEN"),
        (["--output=%u.txt"], "%u"),
        (["--error=%4j.txt"], "%4"),
        (["--requeue", "--no-requeue"], "--no-requeue"),
        (["--wrap=true", "job.sh"], "--wrap"),
        (["--con=x"], "--con"),
        (["missing.sh"], "missing.sh"),
        (["--mem"], "--mem"),
        (["--parsable=yes"], "--parsable"),
    ],
    ids=lambda value: None,
)
def test_everything_else_is_refused_by_name(
    submission: Submission, words: list[str], named: str
) -> None:
    with pytest.raises(Refused) as refused:
        submission(*words)
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("script", "named"),
    [
        ("#!/bin/sh\n#SBATCH --qos=late\n", "--qos"),
        ("#!/bin/sh\n#SBATCH --wrap=true\n", "--wrap"),
        ("#!/bin/sh\n#SBATCH --parsable\n", "--parsable"),
        ("#!/bin/sh\n#SBATCH late\n", "'late'"),
        ("#!/bin/sh\n#SBATCH -J 'x\n", "-J 'x"),
        ("#!/bin/sh\n#PBS -q late\n", "#PBS"),
        ("echo\n", "#!"),
        ("#!\n", "interpreter"),
    ],
)
def test_script_with_anything_else_is_refused(
    submission: Submission, script: str, named: str
) -> None:
    with pytest.raises(Refused) as refused:
        submission(script=script)
    assert named in str(refused.value)


def test_variables_with_options_are_refused(submission: Submission) -> None:
    with pytest.raises(Refused, match="SBATCH_QOS"):
        submission(environ={"SBATCH_QOS": "late"})


def test_options_can_be_joined_and_abbreviated() -> None:
    given, rest = BATCH_OPTIONS.parse(["-Jx", "-n1", "--part=gpu", "job.sh", "-n2"])
    assert given == {"job-name": "x", "ntasks": "1", "partition": "gpu"}
    assert rest == ["job.sh", "-n2"]
