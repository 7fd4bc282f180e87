"""Limits of sizes, names, first sentences, and the only module that writes states."""

import ast
import re

from tests.architecture.source import ROOT, Source, sources

FUNCTION_LINES, FILE_LINES, TEST_FILE_LINES, TICK_FILE_LINES = 70, 500, 800, 150

LONGER_BY_REASON: dict[str, str] = {}
"""`path` or `path:function` -> why it may be longer than the limit."""

FIELD_WORDS = re.compile("ServiceAccount|service_account")
"""Words of the field, of which a part is banned below."""

BANNED_WORDS = {"utils", "helpers", "common", "misc", "manager", "service", "data", "info"}
"""Words that do not describe the content of a module or class."""

NAMES_OF_THE_DOMAIN = ("ServiceAccount", "manager")
"""What users of the product call a user for a machine, and a role."""

NAMED_BY_DJANGO = {"handle": "controlplane/management/commands/"}
"""A banned name that a framework wants, and where."""

STATE_WRITERS = {
    "controlplane/commands/state/apply.py": "the only writer",
    "controlplane/commands/state/apply_jobs.py": "its part about jobs",
    "controlplane/commands/state/apply_sql.py": "its statements as text",
}
STATE_COLUMNS = {"state", "ending_as", "released_at"}
STATE_TABLES = re.compile(
    r"UPDATE\s+controlplane_(?:task|attempt|job|cell)\b(?P<set>.*?)(?:\bFROM\b|\bWHERE\b|$)",
    re.DOTALL | re.IGNORECASE,
)
STATE_NUMBER = re.compile(
    r"\b(?:\w+_)?(?:state|ending_as)\s*(?:=|<>|!=|<=?|>=?|(?:NOT\s+)?IN\s*\()\s*\d|\bcounts\[\d",
    re.IGNORECASE,
)


def ours(*, tests: bool = True) -> list[Source]:
    return [source for source in sources() if tests or not source.is_test]


def test_no_function_is_too_long() -> None:
    too_long = [
        f"{source.path}:{node.name} has {length} lines, more than {FUNCTION_LINES}"
        for source in ours()
        for node in source.functions()
        if (length := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES
        and f"{source.path}:{node.name}" not in LONGER_BY_REASON
    ]
    assert too_long == []


def test_no_file_is_too_long() -> None:
    def limit(source: Source) -> int:
        if source.path.startswith("controlplane/ticks/"):
            return TICK_FILE_LINES
        return TEST_FILE_LINES if source.is_test else FILE_LINES

    too_long = [
        f"{source.path} has {source.lines} lines, more than {limit(source)}"
        for source in ours()
        if source.lines > limit(source) and source.path not in LONGER_BY_REASON
    ]
    assert too_long == []


def test_every_exception_is_still_needed_and_has_a_reason() -> None:
    known = {source.path for source in ours()}
    known |= {f"{source.path}:{node.name}" for source in ours() for node in source.functions()}
    assert [name for name in LONGER_BY_REASON if name not in known] == []
    assert [name for name, reason in LONGER_BY_REASON.items() if len(reason) < 10] == []


def test_every_module_begins_with_a_complete_sentence() -> None:
    speechless = []
    for source in ours():
        if source.path.startswith("tests/") and source.path.endswith("__init__.py"):
            continue
        docstring = (ast.get_docstring(source.tree) or "").strip()
        first = docstring.split("\n\n")[0]
        if not re.search(r"[.:!?]", first):
            speechless.append(source.path)
    assert speechless == []


def test_no_name_is_meaningless() -> None:
    empty = []
    for source in ours():
        stem = FIELD_WORDS.sub("", source.path.rsplit("/", 1)[-1].removesuffix(".py"))
        if BANNED_WORDS & set(stem.replace("service_account", "").split("_")):
            empty.append(source.path)
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef):
                words = {
                    word.lower()
                    for word in re.findall(r"[A-Z][a-z]+", FIELD_WORDS.sub("", node.name))
                }
                if BANNED_WORDS & words:
                    empty.append(f"{source.path}: class {node.name}")
        for node in source.functions():
            allowed = source.path.startswith(NAMED_BY_DJANGO.get(node.name, "-"))
            allowed = allowed or node.name in NAMES_OF_THE_DOMAIN
            if node.name in (BANNED_WORDS | {"handle"}) and not allowed:
                empty.append(f"{source.path}: {node.name}()")
    assert empty == []


def test_package_files_hold_only_a_docstring_and_names_of_others() -> None:
    busy = [
        source.path
        for source in ours(tests=False)
        if source.path.endswith("__init__.py")
        for node in source.tree.body
        if not isinstance(node, ast.Expr | ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign)
    ]
    assert busy == []


def test_only_effects_write_a_state() -> None:
    """By assignment, by a queryset's update, or by SQL."""
    writers = []
    for source in ours(tests=False):
        if not source.path.startswith("controlplane/") or source.path in STATE_WRITERS:
            continue
        if source.path.startswith("controlplane/models/"):  # declares the columns
            continue
        for node in ast.walk(source.tree):
            if found := written_state(node):
                writers.append(f"{source.path}:{getattr(node, 'lineno', '?')} writes {found}")
    assert writers == []


def written_state(node: ast.AST) -> str:
    """Return what `node` writes of a state column; empty if it does not."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("update", "bulk_update", "update_or_create"):
            names = {keyword.arg for keyword in node.keywords} & STATE_COLUMNS
            names |= {
                text.value
                for argument in ast.walk(ast.Tuple(elts=node.args, ctx=ast.Load()))
                if isinstance(text := argument, ast.Constant) and text.value in STATE_COLUMNS
            }
            return ", ".join(sorted(str(name) for name in names))
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            is_own = (
                isinstance(target, ast.Attribute)
                and isinstance(target.value, ast.Name)
                and target.value.id == "self"
            )
            if isinstance(target, ast.Attribute) and target.attr in STATE_COLUMNS and not is_own:
                return target.attr
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        for statement in STATE_TABLES.finditer(node.value):
            for column in sorted(STATE_COLUMNS):
                if re.search(rf"\b{column}\s*=[^=]", statement["set"]):
                    return column
    return ""


def test_state_detector_finds_every_way_to_write() -> None:
    def found(code: str) -> str:
        return " ".join(filter(None, (written_state(node) for node in ast.walk(ast.parse(code)))))

    assert found("Task.objects.filter(pk=1).update(state=4)") == "state"
    assert found("Task.objects.bulk_update(tasks, ['state'])") == "state"
    assert found("task.state = 4") == "state"
    assert found("job.ending_as = 6") == "ending_as"
    assert found("x = 'UPDATE controlplane_task t SET state = 4 WHERE id = 1'") == "state"
    assert found("x = 'UPDATE controlplane_job SET name = 1 WHERE state = 3'") == ""
    assert found("Task.objects.filter(state=3)") == ""
    assert found("seen.update(other=1)") == ""


def test_sql_writes_states_by_name() -> None:
    """As `{S.PENDING:d}` or `counts[{S.PENDING + 1}]`, so that a search for a state finds it."""
    literal = [
        f"{source.path}:{node.lineno} writes {found}"
        for source in ours(tests=False)
        if source.path.startswith("controlplane/")
        for node in ast.walk(source.tree)
        if (found := state_number(node))
    ]
    assert literal == []


def state_number(node: ast.AST) -> str:
    """Return the state that `node`, a part of a text, writes as a number; empty if none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        found = STATE_NUMBER.search(node.value)
        return found[0] if found else ""
    return ""


def test_number_detector_finds_every_way_to_write() -> None:
    def found(code: str) -> str:
        return " ".join(filter(None, (state_number(node) for node in ast.walk(ast.parse(code)))))

    assert found("x = 'WHERE t.state = 1 AND x'") == "state = 1"
    assert found("x = f'WHERE {y} AND state <> 1'") == "state <> 1"
    assert found("x = 'WHERE t.state NOT IN (4, 5)'") == "state NOT IN (4"
    assert found("x = 'SET ending_as=6'") == "ending_as=6"
    assert found("x = 'WHERE to_state >= 4'") == "to_state >= 4"
    assert found("x = 'sum(g.counts[2])'") == "counts[2"
    assert found("x = f'WHERE state = {S.PENDING:d} AND g.counts[{S.PENDING + 1}] > 0'") == ""
    assert found("x = 'WHERE state = %s AND c.state = ANY(%s)'") == ""


def test_no_committed_file_names_a_package_index() -> None:
    pattern = re.compile(
        r"((?<!no-emit-)index-url|find-links|https?://[^\s\"']*(pypi|pythonhosted|simple/))"
    )
    named = [
        str(path.relative_to(ROOT))
        for path in [*(ROOT / "requirements").iterdir(), ROOT / "pyproject.toml", ROOT / "Makefile"]
        if pattern.search(path.read_text())
    ]
    assert named == []


def test_every_pinned_requirement_has_a_hash() -> None:
    for path in (ROOT / "requirements").glob("*.txt"):
        entries = re.split(r"\n(?=[a-z])", path.read_text())
        pinned = [entry for entry in entries if re.match(r"[\w.\[\],-]+==", entry)]
        assert pinned, path.name
        assert [entry.split()[0] for entry in pinned if "--hash=sha256:" not in entry] == []


def test_cell_requirements_exclude_django() -> None:
    names = {
        line.split("==")[0].lower()
        for line in (ROOT / "requirements" / "cell.txt").read_text().splitlines()
        if re.match(r"[\w.-]+==", line)
    }
    assert "celery" in names
    assert not {name for name in names if "django" in name or "psycopg" in name}
