"""`python -m tests.harness.audit FILE`: look up known vulnerabilities of pinned requirements.

pip-audit requests them from the package index. Without a network, or with an index that serves
packages only, the audit is skipped with one line; a vulnerability fails it.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

AUDIT_SECONDS = 180
ANSWER_SECONDS = 10

# Identifier of an accepted vulnerability -> the reason.
ACCEPTED: Mapping[str, str] = {}


def main(arguments: Sequence[str]) -> int:
    """Audit one requirements file; print the result and return the exit code."""
    [file] = arguments
    command = [sys.executable, "-m", "pip_audit", "--requirement", file, "--require-hashes"]
    command += ["--disable-pip", "--progress-spinner", "off", "--format", "json"]
    command += ["--timeout", str(ANSWER_SECONDS)]
    for identifier in ACCEPTED:
        command += ["--ignore-vuln", identifier]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=AUDIT_SECONDS
        )
        output, trouble = done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        output, trouble = "", f"no result within {AUDIT_SECONDS} s"
    lines, code = summarize(output, trouble)
    print("\n".join(f"audit of {file}: {line}" for line in lines))
    return code


def summarize(output: str, trouble: str) -> tuple[list[str], int]:
    """Return the lines to print and the exit code for pip-audit's JSON, or its lack of it."""
    try:
        packages: list[dict[str, Any]] = json.loads(output)["dependencies"]
    except (ValueError, KeyError, TypeError):
        words = trouble.strip().splitlines()
        return [f"skipped, the index does not answer ({words[-1] if words else 'no output'})"], 0
    skipped = sorted(package["name"] for package in packages if "skip_reason" in package)
    if len(skipped) == len(packages):
        return ["skipped, the index knows no vulnerabilities of these packages"], 0
    found = [
        f"{package['name']} {package['version']}: {one['id']}, fixed in"
        f" {', '.join(one['fix_versions']) or 'no version yet'}"
        for package in packages
        for one in package.get("vulns", ())
    ]
    lines = found or [f"no known vulnerability in {len(packages) - len(skipped)} packages"]
    if skipped:
        lines.append(f"not audited: {', '.join(skipped)}")
    return lines, 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
