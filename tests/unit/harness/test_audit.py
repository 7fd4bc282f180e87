"""The audit of requirements fails for a vulnerability, and only for that."""

import json
from typing import Any

from tests.harness.audit import summarize

GOOD = {"name": "good", "version": "1.0", "vulns": []}
BAD = {
    "name": "bad",
    "version": "2.0",
    "vulns": [{"id": "PYSEC-2026-1", "fix_versions": ["2.1", "3.0"]}],
}
UNKNOWN = {"name": "unknown", "skip_reason": "Dependency not found on PyPI"}


def summary(*packages: dict[str, Any]) -> tuple[list[str], int]:
    return summarize(json.dumps({"dependencies": packages, "fixes": []}), "")


def test_vulnerability_fails_and_names_package_and_fixed_versions() -> None:
    assert summary(GOOD, BAD) == (["bad 2.0: PYSEC-2026-1, fixed in 2.1, 3.0"], 1)


def test_vulnerability_without_a_fix_fails() -> None:
    bad = {**BAD, "vulns": [{"id": "PYSEC-2026-2", "fix_versions": []}]}
    assert summary(bad) == (["bad 2.0: PYSEC-2026-2, fixed in no version yet"], 1)


def test_clean_packages_pass() -> None:
    assert summary(GOOD) == (["no known vulnerability in 1 packages"], 0)


def test_package_that_the_index_does_not_know_is_named() -> None:
    lines, code = summary(GOOD, UNKNOWN)
    assert (lines[-1], code) == ("not audited: unknown", 0)
    assert summary(BAD, UNKNOWN)[1] == 1


def test_index_that_knows_no_package_skips_the_audit() -> None:
    assert summary(UNKNOWN) == (
        ["skipped, the index knows no vulnerabilities of these packages"],
        0,
    )


def test_index_that_does_not_answer_skips_the_audit_with_its_error() -> None:
    lines, code = summarize("", "Traceback\nConnectionError: no route to host\n")
    assert lines == ["skipped, the index does not answer (ConnectionError: no route to host)"]
    assert code == 0
