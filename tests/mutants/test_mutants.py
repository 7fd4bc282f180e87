"""The tests of the domain notice nine of ten mistakes; and mutants match their descriptions."""

import ast
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutants.__main__ import report
from tests.mutants.chosen import counting_mutants, draw, other_paths, rule_paths
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.making import Mutant, known_enums, mutants_of, paths_in
from tests.mutants.running import ROOT, Outcome, Score, copied_tree, score_of, try_mutants

LEAST_PERCENT = 90
ELSEWHERE = 400

EXAMPLES = {
    "other member": ("x = Colour.RED", ["x = Colour.GREEN"]),
    "element less": (
        "x = {1, 2, 3}\ny = (a, b)",
        ["x = {2, 3}", "x = {1, 3}", "x = {1, 2}", "y = (b,)", "y = (a,)"],
    ),
    "keyword less": ("f(1, a=x, b=y)", ["f(1, b=y)", "f(1, a=x)"]),
    "operand less": ("x = a and b or c", ["x = b or c", "x = a or c", "x = a and b", "x = c"]),
    "condition": (
        "[a for a in b if a]",
        ["[a for a in b if True]", "[a for a in b if False]"],
    ),
    "membership": ("x = a in b", ["x = a not in b"]),
    "statement less": ("f(x)", ["pass"]),
    "case less": (
        "match a:\n    case 1:\n        b\n    case _:\n        c",
        ["match a:\n    case _:\n        c", "match a:\n    case 1:\n        b"],
    ),
    "builtin": ("x = min(a, b)", ["x = max(a, b)"]),
    "NumberReplacer": ("x = 5", ["x = 6", "x = 4"]),
    "ReplaceComparisonOperator_Lt_LtE": ("x = a < b", ["x = a <= b"]),
}
SILENT = '''\
"""Of no interest: 1 < 2."""


@cache(maxsize=4096)
def f(x: Literal[1, 2], *, y: int | None) -> tuple[int, ...]:
    z: dict[str, int | None]
    return zip(x, y, strict=True)
'''


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with an enum that every module can name."""
    (tmp_path / "controlplane/contract").mkdir(parents=True)
    (tmp_path / "controlplane/domain").mkdir()
    colours = "class Colour(Enum):\n    RED = 1\n    GREEN = 2\n"
    (tmp_path / "controlplane/contract/colours.py").write_text(colours)
    return tmp_path


def made(tree: Path, source: str) -> list[Mutant]:
    (tree / "controlplane/domain/one.py").write_text(source)
    return mutants_of(tree, "controlplane/domain/one.py", known_enums(tree))


@pytest.mark.parametrize("operator", EXAMPLES)
def test_operator_produces_the_expected_mutants(tree: Path, operator: str) -> None:
    imports = "from controlplane.contract.colours import Colour\n"
    source, expected = EXAMPLES[operator]
    found = [one.source for one in made(tree, imports + source) if one.operator == operator]
    wanted = {
        ast.dump(ast.parse(imports + _with(source.split("\n"), text.split("\n"))))
        for text in expected
    }
    assert {ast.dump(ast.parse(text)) for text in found} == wanted


def _with(source: list[str], text: list[str]) -> str:
    """Return `source` with the one line that `text` replaces, or `text` if it replaces all."""
    if len(text) == 1 and len(source) > 1:
        name = text[0].split(" ")[0]
        return "\n".join(text[0] if line.split(" ")[0] == name else line for line in source)
    return "\n".join(text)


def test_code_without_decisions_has_no_mutants(tree: Path) -> None:
    assert made(tree, SILENT) == []


def test_mutants_are_unique_and_parseable(tree: Path) -> None:
    sources = [one.source for one in made(tree, "x = [a for a in b if not c and a < 5]")]
    assert len({ast.dump(ast.parse(source)) for source in sources}) == len(sources) > 5


def test_the_same_seed_draws_the_same_mutants(tree: Path) -> None:
    mutants = made(tree, "x = [1, 2, 3, 4, 5]")
    assert draw(mutants, 5, 3) == draw(mutants, 5, 3) != draw(mutants, 5, 4)


def test_every_equivalent_mutant_exists_and_has_a_reason() -> None:
    known = known_enums(ROOT)
    mutants = {path: mutants_of(ROOT, path, known) for path in {one.path for one in EQUIVALENT}}
    assert [one for one in EQUIVALENT if not any(map(one.fits, mutants[one.path]))] == []
    assert [one for one in EQUIVALENT if len(one.reason) < 20] == []


def test_mutants_are_classified_as_survived_killed_or_stillborn() -> None:
    path = "controlplane/domain/callbacks/delivery.py"  # few tests concern it
    text = (ROOT / path).read_text()
    texts = [text, text + "\nkey_text = None\n", text + "\nraise ValueError\n"]
    mutants = [Mutant(path, 1, "by hand", source, "", "") for source in texts]
    with copied_tree() as tree:
        outcomes = [one.outcome for one in try_mutants(tree, mutants)]
    assert outcomes == [Outcome.SURVIVED, Outcome.KILLED, Outcome.STILLBORN]


@pytest.fixture(scope="module")
def copy() -> Iterator[Path]:
    with copied_tree() as tree:
        yield tree


@pytest.mark.soak
@pytest.mark.serial
def test_nine_of_ten_mutants_of_the_rules_are_killed(copy: Path) -> None:
    tried = try_mutants(copy, counting_mutants(copy, rule_paths(copy)))
    report(tried)
    scores: dict[str, Score] = {
        path: score_of([one for one in tried if one.mutant.path == path])
        for path in rule_paths(copy)
    }
    lived = "\n".join(str(one.mutant) for one in tried if one.outcome is Outcome.SURVIVED)
    assert score_of(tried).percent >= LEAST_PERCENT, lived
    low = {path: score for path, score in scores.items() if score.percent < LEAST_PERCENT}
    assert low == {}, lived


@pytest.mark.soak
@pytest.mark.serial
def test_nine_of_ten_mutants_of_other_modules_are_killed(copy: Path) -> None:
    seed = random.randrange(1_000_000)
    mutants = draw(counting_mutants(copy, other_paths(copy)), ELSEWHERE, seed)
    tried = try_mutants(copy, mutants)
    report(tried)
    lived = "\n".join(str(one.mutant) for one in tried if one.outcome is Outcome.SURVIVED)
    print(f"python -m tests.mutants --elsewhere {ELSEWHERE} --seed {seed}")
    assert len(mutants) == ELSEWHERE
    assert score_of(tried).percent >= LEAST_PERCENT, lived


def test_every_domain_module_is_listed_as_rule_or_other() -> None:
    rules, others = rule_paths(ROOT), other_paths(ROOT)
    assert {*paths_in(ROOT)} <= {*rules, *others}
    assert not {*rules} & {*others}
    assert [path for path in rules if not (ROOT / path).is_file()] == []
