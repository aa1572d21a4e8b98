"""What code of others may import: few names, light, typed, and nothing deeper is ever shown."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import pytest_mlperf
from pytest_mlperf import extension, judge

ROOT = Path(__file__).resolve().parents[1]

NAMES = [
    *("Builder", "Dataset", "Engine", "EnvironmentFault", "Leverage", "MlperfError"),
    *("MlperfFixture", "Outcome", "RunError", "Scorer", "Scores", "Sink", "SuiteError"),
    *("UnavailableError", "Verdict", "WorkQueue", "__version__"),
]

TESTING = [
    *("RecordingSink", "check_addon", "check_builder", "check_dataset", "check_engine"),
    "check_scorer",
]

IN_TESTS_ALONE = {"MlperfFixture", "Outcome", "Verdict"}
"""Names for a test's own code, which never runs in the Python of an engine."""


def test_the_public_names_are_these() -> None:
    assert pytest_mlperf.__all__ == NAMES
    assert len(NAMES) <= 20
    assert set(NAMES) <= set(dir(pytest_mlperf))
    assert [name for name in NAMES if getattr(pytest_mlperf, name) is None] == []


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'pytest_mlperf' has no attribute 'Enigne'"):
        _ = pytest_mlperf.Enigne  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", [pytest_mlperf, extension, judge])
def test_type_checkers_see_the_names_that_are_imported_lazily(module: ModuleType) -> None:
    """Both lists have the same names: mypy reads one, Python the other."""
    tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))
    seen = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("pytest_mlperf.")
        for alias in node.names
    }

    assert seen == {
        alias.rpartition(" ")[2]: (f"pytest_mlperf.{origin}", alias.partition(" ")[0])
        for origin, aliases in module._ORIGINS.items()
        for alias in aliases
    }
    assert set(module.__all__) - {"__version__"} == set(seen)
    assert [name for name in seen if getattr(module, name) is None] == []


@pytest.mark.process
def test_an_extension_needs_the_standard_library_only() -> None:
    """An engine may run in a Python in which nothing is installed."""
    names = ", ".join(name for name in NAMES if name not in IN_TESTS_ALONE)
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pytest_mlperf import {names}"

    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )

    assert done.stderr == ""


USER = """
from collections.abc import Sequence

from pytest_mlperf import Engine, MlperfFixture, Outcome, Scores, Sink, WorkQueue


class Mine(Engine):
    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        sink.done(ids, [b""] * len(ids) if sink.wants_output else None)


def test_mine(mlperf: MlperfFixture) -> None:
    outcome: Outcome = mlperf.run(engine=Mine).verdict.outcome
    scores: Scores = Scores(per_sample={}, aggregate={})
    queue: WorkQueue = WorkQueue(Mine().submit)
"""

WRONG = """
from pytest_mlperf import Engine, Enigne, Sink


def answer(engine: Engine, sink: Sink) -> int:
    sink.dine([1])
    return sink.wants_output + "1"
"""


@pytest.mark.process
@pytest.mark.nightly
def test_users_of_mypy_get_the_types(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "wrong.py").write_text(WRONG)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file="]

    done = subprocess.run(
        [*command, "--cache-dir", str(tmp_path / "cache"), "user.py", "wrong.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    errors = re.findall(r"^(\w+)\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    assert errors == [
        ("wrong", "2", "attr-defined"),
        ("wrong", "6", "attr-defined"),
        ("wrong", "7", "operator"),
    ], done.stdout


IMPORT = re.compile(r"^\s*(?:from|import) (pytest_mlperf[\w.]*)", re.MULTILINE)
MENTION = re.compile(r"`(pytest_mlperf(?:\.\w+)+)(?![\w.])[^`]*`")

GROUPS = {
    f"pytest_mlperf.{group}"
    for group in (
        "addons",
        "builders",
        "calibration",
        "commands",
        "datasets",
        "engines",
        "formats",
        "readers",
        "scorers",
    )
}
"""Entry-point groups are called so."""

PUBLIC = {
    *("pytest_mlperf", "pytest_mlperf.extension", "pytest_mlperf.judge", "pytest_mlperf.testing"),
}

ARCHITECTURE = "architecture.md"
"""The page about the inside; it is for who changes it."""


def shown_files() -> Iterator[Path]:
    """Yield the pages and the code that readers copy from; docs/_ext builds the reference."""
    yield ROOT / "README.md"
    yield from (page for page in ROOT.glob("docs/**/*.md") if page.name != ARCHITECTURE)
    for folder in ("examples", "suites"):
        yield from sorted((ROOT / folder).rglob("*.py"))
        yield from sorted((ROOT / folder).rglob("*.md"))


def test_nothing_deeper_is_shown_to_readers() -> None:
    """Pages, examples and suites import the modules of `PUBLIC` alone."""
    deeper = set()
    for path in shown_files():
        text = path.read_text("utf-8")
        named = {name for name in MENTION.findall(text) if name not in GROUPS and not public(name)}
        deeper |= {(path, name) for name in (set(IMPORT.findall(text)) - PUBLIC) | named}

    assert deeper == set()


def public(name: str) -> bool:
    """Whether a dotted name that a page mentions is a public one."""
    module, _, attribute = name.rpartition(".")
    return name in PUBLIC or (
        module in PUBLIC
        and attribute in {*NAMES, *TESTING, *vars(extension)["__all__"], *vars(judge)["__all__"]}
    )
