"""Each package that an installation downloads is pinned by hash, and none has an address."""

import re

import pytest

from tests.architecture.source import ROOT

FILES = sorted((ROOT / "requirements").glob("*.txt"))
PINNED = re.compile(r"[A-Za-z0-9._\[\],-]+==\S+( ; .+)?( --hash=sha256:[0-9a-f]{64})+")
"""A requirement on one line, after its continuation lines were joined."""


def faults_of(text: str) -> list[str]:
    """Return the lines of a requirement file that are no package pinned by hash."""
    joined = re.sub(r"\s*\\\n\s*", " ", text)
    lines = [line.partition(" #")[0].rstrip() for line in joined.splitlines()]
    named = [line for line in lines if line and not line.lstrip().startswith("#")]
    return [line for line in named if not PINNED.fullmatch(line)]


def test_requirements_of_all_parts_are_checked() -> None:
    names = ["airflow", "cell", "dev", "hyperqueue", "lock", "prefect", "run", "slurm-clients"]
    assert [path.stem for path in FILES] == names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_requirement_is_pinned_by_hash_and_has_no_address(path: object) -> None:
    text = (ROOT / "requirements" / str(path)).read_text()
    assert "==" in text
    assert faults_of(text) == []


@pytest.mark.parametrize(
    "line",
    [
        "amqp==5.4.2",
        "amqp>=5.4 --hash=sha256:" + "0" * 64,
        "amqp @ https://files.example/amqp.whl --hash=sha256:" + "0" * 64,
        "--index-url https://index.example",
        "git+https://git.example/amqp",
    ],
)
def test_other_requirements_are_found(line: str) -> None:
    assert faults_of(line) == [line]


@pytest.mark.parametrize(
    "path", ["Makefile", "deploy/controlplane.Dockerfile", "deploy/cell.Dockerfile"]
)
def test_installers_require_the_hashes(path: str) -> None:
    text = (ROOT / path).read_text().replace("\\\n", " ")
    installs = [line for line in text.splitlines() if "pip install" in line]
    assert installs
    assert [line for line in installs if not re.search("--require-hashes|--no-index", line)] == []


@pytest.mark.parametrize("part", ["controlplane", "cell"])
def test_base_of_an_image_can_be_pinned_with_a_build_argument(part: str) -> None:
    lines = (ROOT / "deploy" / f"{part}.Dockerfile").read_text().splitlines()
    bases = [line for line in lines if line.startswith("FROM ")]
    assert any(line.startswith("ARG BASE=") for line in lines)
    assert bases
    assert {line.split()[1] for line in bases} == {"${BASE}"}


def test_security_policy_describes_reports() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    assert "## Report a vulnerability\n" in text
    assert '"Report a vulnerability" on the Security page' in " ".join(text.split())
