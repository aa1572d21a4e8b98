"""tools/house.py: figures of a tree are right, none may rise, and limits are only lowered."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.sources import ROOT

CLI = """
def main(arguments):
    print("pytest-mlperf 0")
    raise SystemExit(0)
"""
HIGH = 99_999


@pytest.fixture(scope="module")
def house(lib: Any) -> Any:
    return lib("house")


def write(root: Path, **texts: str) -> Path:
    """Write files below a root; "core__case" is pytest_mlperf/core/case.py."""
    for name, text in texts.items():
        path = root / "pytest_mlperf" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


def figure(house: Any, root: Path, name: str) -> tuple[Any, list[str]]:
    value = house.FIGURES[name](house.Tree(root))
    return value.value, list(value.places)


def limits(root: Path) -> dict[str, Any]:
    groups = tomllib.loads((root / "tools" / "house_limits.toml").read_text("utf-8"))
    return {**groups["reached"], **groups["allowed"]}


@pytest.fixture
def checkout(house: Any, tmp_path: Path) -> Path:
    """Make a checkout with high limits; one of them has a goal, one is fixed."""
    root = write(tmp_path, cli=CLI, core__case="class Case:\n    pass\n")
    (root / "pytest_mlperf" / "__init__.py").write_text("", "utf-8")
    names = [name for name in house.FIGURES if name not in ("circles", "lines_of_kernel")]
    lines = [f"{name} = {HIGH}" for name in names]
    text = "\n".join(["[reached]", *lines, "circles = 9  # goal: 0", "[allowed]"])
    (root / "tools").mkdir()
    (root / house.LIMITS).write_text(f"{text}\nlines_of_kernel = 90\n", "utf-8")
    return root


def test_this_project_has_a_limit_for_each_figure(house: Any) -> None:
    assert set(limits(ROOT)) == set(house.FIGURES)


def test_imports_through_each_wall_are_named(house: Any, tmp_path: Path) -> None:
    """Names of the kernel that an add-on may use count apart."""
    root = write(
        tmp_path,
        core__case="Case = 1\n",
        extension="Engine = 1\n",
        run="def load():\n    from pytest_mlperf.adapters.engine import Null\n",
        adapters__engine="from pytest_mlperf.core.case import Case\n",
        adapters__other="from pytest_mlperf.extension import Engine\n",
        addons__html__page="from pytest_mlperf.core import case\n",
        addons__fleet="import pytest_mlperf.addons.html.page\n",
    )

    assert figure(house, root, "imports_through_a_wall") == (
        3,
        [
            "adapters.engine -> core.case",
            "addons.fleet -> addons.html.page",
            "run -> adapters.engine",
        ],
    )
    assert figure(house, root, "kernel_names_of_adapters")[0] == 2
    assert figure(house, root, "kernel_names_of_addons") == (1, ["pytest_mlperf.core (1)"])


def test_each_circle_is_one(house: Any, tmp_path: Path) -> None:
    root = write(
        tmp_path,
        a="import pytest_mlperf.b\nimport pytest_mlperf.d\n",
        b="import pytest_mlperf.c\n",
        c="import pytest_mlperf.a\n",
        d="import pytest_mlperf.e\n",
        e="import pytest_mlperf.d\n",
    )

    trails = ["a -> b -> c -> a", "d -> e -> d"]
    assert figure(house, root, "circles") == (2, trails)


def test_sizes_count_from_one_above_their_bound(house: Any, tmp_path: Path) -> None:
    def methods(number: int) -> str:
        return "".join(f"    def m{i}(self): ...\n" for i in range(number))

    def values(name: str, number: int) -> str:
        fields = "".join(f"    f{i}: int\n" for i in range(number))
        return f"@dataclass(frozen=True)\nclass {name}:\n{fields}    C: ClassVar[int] = 1\n"

    def function(lines: int) -> str:
        return f"def f{lines}():\n" + "    x = 1\n" * (lines - 1)

    root = write(
        tmp_path,
        classes=f"class Few:\n{methods(25)}class Many:\n{methods(26)}",
        lines="class Short:\n" + "    x = 1\n" * 299 + "class Long:\n" + "    x = 1\n" * 300,
        values=values("Small", 24) + values("Large", 25) + values("Options", 30),
        functions=function(60) + function(61),
    )

    assert figure(house, root, "classes_over_300_lines_or_25_methods") == (
        2,
        [
            "pytest_mlperf/lines.py:301 Long (301 lines, 0 methods)",
            "pytest_mlperf/classes.py:27 Many (27 lines, 26 methods)",
        ],
    )
    large = (1, ["pytest_mlperf/values.py:29 Large (25)"])
    assert figure(house, root, "dataclasses_over_24_fields") == large
    assert figure(house, root, "fields_of_options")[0] == 30
    long = (1, ["pytest_mlperf/functions.py:61 f61 (61)"])
    assert figure(house, root, "functions_over_60_lines") == long


def test_constants_of_one_name_and_lines_are_counted_by_module(house: Any, tmp_path: Path) -> None:
    root = write(
        tmp_path,
        a="MOST = 1\nLEAST, T = 1, 2\n",
        b="MOST: int = 2\nLEAST = 3\nT = 1\n",
        adapters__c="MOST = 3\nT = 2\n",
        addons__d="def f():\n    LEAST = 1\n    return LEAST\n",
    )

    assert figure(house, root, "constants_in_3_modules") == (1, ["MOST (3)"])
    lines = {part: figure(house, root, f"lines_of_{part}") for part in ("kernel", "package")}
    assert lines["kernel"] == (5, ["b (3)", "a (2)"])
    assert lines["package"][0] == 10
    assert figure(house, root, "lines_of_adapters")[0] == 2
    assert figure(house, root, "lines_of_addons")[0] == 3


def test_cells_are_counted_from_the_source_of_a_file(house: Any, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    lists = {
        "[*NUMBERS, 1]": 31,
        "sorted(TABLE.items())": 2,
        "range(2, 33)": 31,
        "[(n, 1) for n in NUMBERS]": 30,
        "[n for n in NUMBERS if n]": 1,
        "NUMBERS + [1]": 31,
        "elsewhere.NAMES": 1,
    }
    head = f"import pytest\nNUMBERS = {list(range(30))}\nTABLE = {{1: 2, 3: 4}}\n"
    tests = [
        f'@pytest.mark.parametrize("n", {text})\n@pytest.mark.slow\ndef test_{i}(n): ...\n'
        for i, text in enumerate(lists)
    ]
    product = '@pytest.mark.parametrize("a", NUMBERS)\n@pytest.mark.parametrize("b", [1, 2])\n'
    text = head + "".join(tests) + f"{product}def test_product(a, b): ...\n"
    (tmp_path / "tests" / "test_it.py").write_text(text, "utf-8")

    number, places = figure(house, tmp_path, "tests_over_30_cells")

    assert number == 4
    assert places == [
        "tests/test_it.py::test_product (60)",
        *(f"tests/test_it.py::test_{i} (31)" for i in (0, 2, 5)),
    ]


def test_language_is_counted_as_densities(house: Any, tmp_path: Path) -> None:
    """Code and targets of comprehensions do not count."""
    long = "word " * 31
    root = write(
        tmp_path,
        a='"""Read a file."""\n\nX = 1\n"""None: nobody tells."""\n',
        b=f'"""Return `what is` in it. {long}."""\n\n\ndef f(found, size):\n'
        '    """Do it."""\n'
        "    return [now for now in size]\n",
    )
    for folder in ("tests", "docs"):
        (root / folder).mkdir()
    (root / "tests" / "test_a.py").write_text("found = 1\nrun = 2\n", "utf-8")
    (root / "docs" / "a.md").write_text(
        f"# {long}\n\n{long}. Nobody is told.\n\n| {long} |\n", "utf-8"
    )

    assert figure(house, root, "marked_docstrings_percent") == (25.0, ["pytest_mlperf/a.py (1)"])
    vague = (250.0, ["pytest_mlperf/b.py (1)"])
    assert figure(house, root, "vague_names_per_1000") == vague
    vague_in_tests = (500.0, ["tests/test_a.py (1)"])
    assert figure(house, root, "vague_names_in_tests_per_1000") == vague_in_tests
    sentences = (166.7, ["pytest_mlperf/b.py (1)"])
    assert figure(house, root, "long_sentences_in_docstrings_per_1000") == sentences
    page = (500.0, ["docs/a.md (1)"])
    assert figure(house, root, "long_sentences_in_docs_per_1000") == page
    assert figure(house, root, "marked_sentences_in_docs_per_1000") == page


def test_duplicates_are_those_of_make_duplicates(house: Any, tmp_path: Path) -> None:
    passage = "".join(f"step({number})\n" for number in range(6))
    root = write(tmp_path, a=passage, b=f"\n{passage}")

    pair = "pytest_mlperf/a.py:1 and pytest_mlperf/b.py:2 (6 lines)"
    assert figure(house, root, "duplicate_pairs") == (1, [pair])


@pytest.mark.process
def test_a_figure_above_its_limit_fails_and_names_the_places(
    house: Any, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert house.main([], checkout) == 0
    assert "lines_of_kernel" in capsys.readouterr().out

    write(checkout, run="x = 1\n" * 100)

    assert house.main([], checkout) == 1
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "lines_of_kernel: 106 is above the limit of 90. The worst:",
        "    run (100)",
        "    cli (4)",
        "    core.case (2)",
    ]


@pytest.mark.process
def test_write_lowers_limits_reached_and_raises_none(
    house: Any, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Comments stay, and so do fixed limits."""
    assert house.main([], checkout) == 0
    may = "circles: 0 is below 9; the limit may be lowered: python tools/house.py --write"
    assert may in capsys.readouterr().out.splitlines()
    assert limits(checkout)["circles"] == 9

    assert house.main(["--write"], checkout) == 0

    assert limits(checkout)["circles"] == 0
    assert limits(checkout)["lines_of_package"] == 6
    assert limits(checkout)["modules_imported_by_version"] == 2
    assert limits(checkout)["lines_of_kernel"] == 90
    text = (checkout / house.LIMITS).read_text("utf-8")
    assert "circles = 0  # goal: 0" in text

    write(checkout, a="import pytest_mlperf.b\n", b="import pytest_mlperf.a\n")

    assert house.main(["--write"], checkout) == 1
    assert (checkout / house.LIMITS).read_text("utf-8") == text


def test_a_figure_without_a_limit_is_an_error(
    house: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / house.LIMITS).write_text("[reached]\n[allowed]\n", "utf-8")

    assert house.main([], tmp_path) == 1
    assert "circles" in capsys.readouterr().out
