"""The documentation follows the code: pages that are generated, links that lead somewhere."""

import re
from pathlib import Path

import pytest

from controlplane.config.process_settings import OF_TRACES
from controlplane.contract.settings_names import CELL, CONTROL_PLANE, STACK
from docgen import settings_page, states_page
from docgen.generate import FOLDER, PAGES
from tests.architecture.source import ROOT

DOCUMENTS = sorted(
    path
    for path in (ROOT.glob("*.md"), ROOT.glob("docs/**/*.md"), ROOT.glob("deploy/*.md"))
    for path in path
)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(#[^)\s]*)?\)|src(?:set)?=\"([^\"]+)\"")


@pytest.mark.parametrize("name", sorted(PAGES))
def test_generated_page_matches_the_code(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), "run `make docs`"


def test_exactly_the_known_settings_are_documented() -> None:
    known = {*CONTROL_PLANE, *CELL, *STACK, *OF_TRACES, "DATABASE_URL", "CELERY_BROKER_URL"}
    assert set(settings_page.MEANINGS) == known
    assert set(settings_page.CELL_EXPECTS) == {*CELL, "CELERY_BROKER_URL"}
    assert not [line for line in settings_page.write().splitlines() if "|  |" in line]


def test_every_state_and_event_is_explained() -> None:
    page = states_page.write()
    assert all(text in page for text in states_page.MEANINGS.values())
    assert all(text in page for text in states_page.EVENTS.values())
    assert set(states_page.ORDER) == set(states_page.MEANINGS) == set(states_page.COLOURS)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_internal_link_has_a_target(path: Path) -> None:
    dead = []
    for target, anchor, source in LINK.findall(path.read_text()):
        name = target or source
        if re.match(r"[a-z]+:", name):
            continue
        found = path.parent / name if name else path
        if not found.exists():
            dead.append(name)
        elif anchor and found.suffix == ".md" and anchor[1:] not in anchors(found):
            dead.append(name + anchor)
    assert dead == []


def test_every_test_named_by_the_features_page_exists() -> None:
    named = re.findall(
        r"\[`[\w.]+(?:::(\w+))?`\]\(\.\./(\S+?)\)", (FOLDER / "features.md").read_text()
    )
    assert len(named) > 50
    missing = [
        f"{path}::{test}"
        for test, path in named
        if test and f"def {test}(" not in (ROOT / path).read_text()
    ]
    assert missing == []


NAMED_TEST = re.compile(r"`(tests/[\w/.-]+\.py)(?:::(\w+))?`")
THREATS = (
    "A stolen token",
    "A stolen cell key",
    "A hostile task",
    "A reader of Redis or of the network",
)


def test_every_test_named_by_the_security_page_exists() -> None:
    page = (FOLDER / "security.md").read_text()
    named = NAMED_TEST.findall(page)
    assert len(named) > 60
    assert len(named) == page.count("tests/"), "a name in another form is not checked"
    assert [item for item in named if not is_test(*item)] == []


def is_test(path: str, test: str) -> bool:
    """Return whether the file exists and has the test; without a name, at least one."""
    file = ROOT / path
    pattern = rf"^def {re.escape(test)}\(" if test else r"^def test_\w+\("
    is_name = not test or test.startswith("test_")
    return is_name and file.is_file() and bool(re.search(pattern, file.read_text(), re.MULTILINE))


def test_name_of_a_missing_test_is_found() -> None:
    own = "tests/architecture/test_docs.py"
    assert is_test(own, "test_name_of_a_missing_test_is_found")
    assert is_test(own, "")
    assert not is_test(own, "test_name_of_a_missing_test")
    assert not is_test(own, "is_test")
    assert not is_test("tests/architecture/test_none.py", "")
    assert not is_test("tests/architecture/source.py", "")


@pytest.mark.parametrize("title", THREATS)
def test_every_statement_about_an_attacker_names_its_test(title: str) -> None:
    page = (FOLDER / "security.md").read_text()
    (section,) = re.findall(rf"^## {title}\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    statements = re.findall(r"^\* .*(?:\n  .*)*", section, re.MULTILINE)
    assert len(statements) >= 5
    assert [text for text in statements if not NAMED_TEST.search(text)] == []


ADVICE = (
    "Principals",
    "Plain processes",
    "Runners",
    "The engine's socket",
    "Attacks and their tests",
)
"""Sections that describe what is not prevented, or name tests in a table."""


def test_every_statement_of_the_other_sections_names_its_test() -> None:
    page = (FOLDER / "security.md").read_text()
    sections = re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    others = {title: text for title, text in sections if title not in (*THREATS, *ADVICE)}
    assert len(others) >= 10
    parts = [part for text in others.values() for part in re.split(r"\n\n|\n(?=\* )", text)]
    statements = [part for part in parts if part.strip() and not part.strip().startswith("|")]
    assert len(statements) > 15
    assert [text for text in statements if not NAMED_TEST.search(text)] == []


def test_every_file_named_by_the_contributor_pages_exists() -> None:
    named = {
        (page.name, path)
        for page in (FOLDER / "contributing").glob("*.md")
        for path in re.findall(r"`([\w.-]+/[\w./-]*)`", page.read_text())
    }
    assert len(named) > 80
    missing = [
        item
        for item in sorted(named)
        if not (ROOT / item[1]).exists() and not (ROOT / "controlplane" / item[1]).exists()
    ]
    assert missing == []


def test_every_function_on_the_code_map_exists() -> None:
    rows = [
        re.findall(r"`([^`]+)`", line)
        for line in (FOLDER / "contributing" / "README.md").read_text().splitlines()
        if re.match(r"\| .*`\w[\w.]*`.*`\S+\.py`", line)
    ]
    missing = [
        name
        for row in rows
        for name in row
        if re.fullmatch(r"[\w.]+", name)
        and not any(
            re.search(rf"\b{name.rpartition('.')[2]}\b", (ROOT / path).read_text())
            for path in row
            if path.endswith(".py")
        )
    ]
    assert len(rows) > 10
    assert missing == []


def anchors(path: Path) -> set[str]:
    """The anchors of a Markdown file, as they are made of its headings."""
    headings = re.findall(r"^#+ +(.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text).strip().lower().replace(" ", "-") for text in headings}


def test_every_decision_has_its_number_and_its_three_parts() -> None:
    paths = sorted((FOLDER / "decisions").glob("*.md"))
    assert [path.name[:4] for path in paths] == [f"{n:04}" for n in range(1, len(paths) + 1)]
    for path in paths:
        text = path.read_text()
        assert re.match(rf"# {int(path.name[:4])}\. ", text), path.name
        for part in ("**Context.**", "**Decision.**", "**Consequences.**"):
            assert part in text, f"{path.name} has no {part}"
