"""Names and sentences use the field's words: banned parts of identifiers, banned phrases."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source import ROOT, Source, sources

BANNED_PARTS = {
    **dict.fromkeys(("ask", "asks", "asked"), "request, need, submit, call"),
    **dict.fromkeys(("tell", "tells", "told"), "report, notify, send"),
    **dict.fromkeys(("say", "says", "said"), "report, print, send"),
    **dict.fromkeys(("hear", "hears", "heard", "hearing"), "receive"),
    **dict.fromkeys(("look", "looks", "looked"), "inspect, check, scan, poll"),
    **dict.fromkeys(("nobody", "somebody", "whoever", "whom", "who"), "the component that acts"),
    **dict.fromkeys(("wish", "wishes"), "option, request"),
    **dict.fromkeys(("stray", "strays"), "orphan"),
    **dict.fromkeys(("strike", "struck"), "fence"),
    **dict.fromkeys(("door", "doors"), "endpoint, view"),
    **dict.fromkeys(("courier", "clerk"), "worker, store thread"),
    **dict.fromkeys(("briefing", "briefings"), "launch context"),
    **dict.fromkeys(("hand", "hands"), "control"),
    **dict.fromkeys(("deed", "deeds"), "action"),
    **dict.fromkeys(("happening", "happenings", "happened"), "input, event"),
    **dict.fromkeys(("twin", "twins"), "duplicate"),
    **dict.fromkeys(("bounce", "bounced", "bouncing"), "requeue"),
    **dict.fromkeys(("ledger", "books"), "quota usage, records"),
    **dict.fromkeys(("occupant", "occupants"), "running attempt"),
    **dict.fromkeys(("mend", "mends", "mended"), "repair"),
    **dict.fromkeys(("nap", "breath", "breathe"), "sleep, wait"),
    **dict.fromkeys(("choosy", "stranger", "strangers"), "a noun of the glossary"),
}
"""A part of an identifier -> what to use instead."""

BANNED_PHRASES = re.compile(
    r"\b(?:nobody|somebody|whoever|anybody|for ever|but for|as ever|told|heard|hears?"
    r"|whom|says?|said|looks? at|himself|he|his|him|mend(?:s|ed)?|strays?|briefings?"
    r"|bounc(?:e|es|ed|ing)|struck|twins?|ledger|deeds?|courier|clerk)\b",
    re.IGNORECASE,
)

SQL_COMMENT = re.compile(r"^\s+-- (.+)$", re.MULTILINE)

BARE_PARTICIPLES = re.compile(
    r"_?(?:Asked|Found|Given|Held|Kept|Known|Taken|Told|Said|Seen|Chosen|Placed|Picked|Read|Sent"
    r"|Written|Done|Left|Lost|Made|Met|Put|Run|Set|Shown|Begun|Gone|[A-Z][a-z]+ed)"
)
"""A class of this name has no noun."""

ONE_NAME_MANY_LAYERS = {
    **dict.fromkeys(
        [
            "Alert",
            "Attempt",
            "AuditLine",
            "BulkCount",
            "BulkOperation",
            "CacheEntry",
            "Callback",
            "Cell",
            "Change",
            "ExecDocument",
            "Hold",
            "Job",
            "JobDependency",
            "NotificationAddressDocument",
            "NotificationMessageDocument",
            "NotificationRuleDocument",
            "ScheduleDocument",
            "ScheduleFiringDocument",
            "UsageRow",
            "Pool",
            "Project",
            "QueueEntry",
            "Quota",
            "Secret",
            "ServiceAccount",
            "Task",
            "TaskArtifacts",
        ],
        "the resource: its table, its document in the API, its model for a client or a cell",
    ),
    **dict.fromkeys(
        [
            "AllowedMount",
            "Artifact",
            "AttemptExec",
            "BulkRefusal",
            "BulkSample",
            "BulkSelection",
            "CacheOrigin",
            "DryRun",
            "GroupForecast",
            "HeldRole",
            "JobGroup",
            "JobLimits",
            "JobWait",
            "LogPiece",
            "NotificationQuietHours",
            "PendingReason",
            "QueuePlace",
            "RuleGrowth",
            "ScheduleInstant",
            "TaskOrigin",
        ],
        "a part of a response: as the server writes and as the client reads it",
    ),
    **dict.fromkeys(
        ["Constraint", "HealthCheck", "Input", "Mount", "Output", "Tmpfs"],
        "a part of a job: as submitted, and as decisions or cells use it",
    ),
    **dict.fromkeys(
        ["PromptAmqp", "PromptConnection"],
        "the broker's connection: a cell may import only the contract, which has no Celery",
    ),
}
"""Names of classes that mean the same in several layers -> the meaning."""

PRODUCT = ("controlplane/", "workers/", "cellrun/")

DOCUMENTS = sorted(
    path
    for paths in (ROOT.glob("*.md"), ROOT.glob("docs/**/*.md"), ROOT.glob("deploy/*.md"))
    for path in paths
)


def product() -> list[Source]:
    return [source for source in sources() if source.path.startswith(PRODUCT)]


def other_modules() -> list[Source]:
    """Return the tests, benchmarks, generators and examples."""
    return [source for source in sources() if not source.path.startswith(PRODUCT)]


def test_no_identifier_has_a_banned_part() -> None:
    assert banned_names(product()) == {}


def test_no_identifier_of_tests_and_tools_has_a_banned_part() -> None:
    assert banned_names(other_modules()) == {}


def banned_names(modules: list[Source]) -> dict[str, list[str]]:
    """Return the identifiers with banned parts by module, each with its replacement."""
    found = {
        source.path: [
            f"{name}: not {part!r}; use {BANNED_PARTS[part]}"
            for name in sorted(names_of(source))
            for part in parts_of(name)
            if part in BANNED_PARTS
        ]
        for source in modules
    }
    return {path: names for path, names in found.items() if names}


def names_of(source: Source) -> set[str]:
    """Return the names that a module defines: its own and those of what it contains."""
    found = {source.path.rsplit("/", 1)[-1].removesuffix(".py")}
    for node in ast.walk(source.tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.arg():
                found.add(node.arg)
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.Attribute(ctx=ast.Store()):
                found.add(node.attr)
            case ast.alias(asname=str(name)):
                found.add(name)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                found.add(name)
    return found


def parts_of(name: str) -> list[str]:
    return [part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def test_name_is_split_into_its_words() -> None:
    assert parts_of("is_told_again") == ["is", "told", "again"]
    assert parts_of("MAX_ASKED") == ["max", "asked"]
    assert parts_of("GangTwinsOf") == ["gang", "twins", "of"]
    assert parts_of("_handler") == ["handler"]


def test_no_docstring_or_comment_has_a_banned_phrase() -> None:
    found = {
        (source.path, line, phrase)
        for source in sources()
        if BANNED_PHRASES.search(source.text)
        for line, text in prose_of(source)
        for phrase in BANNED_PHRASES.findall(without_code(text))
    }
    assert found == set()


def prose_of(source: Source) -> Iterator[tuple[int, str]]:
    """Yield docstrings, and comments of Python and SQL, with their lines."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for comment in SQL_COMMENT.findall(node.value):
                yield node.lineno, comment
        has_docstring = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, has_docstring) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`]*`|\[[^\]]*\]\([^)]*\)", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_page_has_a_banned_phrase(path: Path) -> None:
    assert BANNED_PHRASES.findall(without_code(path.read_text())) == []


def test_no_class_is_named_by_a_bare_participle() -> None:
    found = [
        f"{source.path}: class {node.name}"
        for source in product()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef) and BARE_PARTICIPLES.fullmatch(node.name)
    ]
    assert found == []


def test_a_name_of_a_class_has_one_meaning() -> None:
    places = defaultdict(set)
    for source in product():
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef) and node.name not in ("Meta", "Command"):
                places[node.name].add(source.path)
    repeated = {name: sorted(paths) for name, paths in places.items() if len(paths) > 1}
    assert {n: p for n, p in repeated.items() if n not in ONE_NAME_MANY_LAYERS} == {}
    assert set(ONE_NAME_MANY_LAYERS) <= set(repeated), "an exception that is not needed any more"


def test_no_package_has_more_than_fifteen_modules() -> None:
    modules = defaultdict(set)
    for source in product():
        folder, _, name = source.path.rpartition("/")
        if name != "__init__.py":
            modules[folder].add(name)
    assert {folder: len(names) for folder, names in modules.items() if len(names) > 15} == {}
