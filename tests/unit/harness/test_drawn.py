"""Which random courses a run takes."""

from pathlib import Path

from tests.harness.drawn import SOURCES, base_of


def tree(root: Path, **texts: str) -> Path:
    for number, folder in enumerate(SOURCES):
        (root / folder).mkdir(parents=True)
        (root / folder / "some.py").write_text(f"x = {number}\n")
    for name, text in texts.items():
        (root / SOURCES[0] / f"{name}.py").write_text(text)
    return root


def test_seed_depends_only_on_the_product_source(tmp_path: Path) -> None:
    one, other = tree(tmp_path / "one"), tree(tmp_path / "other")
    (other / "tests" / "test_more.py").write_text("")
    assert base_of(one) == base_of(other)
    assert base_of(one) % 1_000 == 0


def test_changed_source_gives_a_different_seed(tmp_path: Path) -> None:
    bases = {
        base_of(tree(tmp_path / "first")),
        base_of(tree(tmp_path / "second", more="")),
        base_of(tree(tmp_path / "third", other="")),
        base_of(tree(tmp_path / "fourth", more="x = 2\n")),
    }
    assert len(bases) == 4
