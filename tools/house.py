"""`make house`: limits on walls, sizes, language and duplicates, which only get lower.

    python tools/house.py            print each figure beside its limit; exit with 1 if one is above
    python tools/house.py --write    lower the limits to the figures reached; raise none
    python tools/house.py --places duplicate_pairs    print every place of one figure

tools/house_limits.toml has the limits. Those under `[reached]` are the figures reached: the command
says where a figure fell. Those under `[allowed]` are fixed, and --write leaves them as they are.
To raise a limit, edit the file and say why in the commit.

Everything is read from the source, so that figures are equal on every Python and with any extras
installed. Only `modules_imported_by_version` starts a process.
"""

from __future__ import annotations

import argparse
import ast
import gc
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import cells
import duplicates
import plain

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from tests import test_names  # noqa: E402
from tests.sources import Package, parsed, part_of  # noqa: E402

LIMITS = Path("tools/house_limits.toml")
MAX_CLASS_LINES, MAX_METHODS, MAX_FIELDS, MAX_FUNCTION_LINES = 300, 25, 24, 60
MAX_CELLS, MAX_WORDS = 30, 30
MIN_MODULES_OF_CONSTANT = 3
OWN_LIMIT = "Options"
"""The one dataclass that may have more fields than others: pytest's options."""

SHOWN_PLACES = 10
"""Places to name under a figure that rose."""

VAGUE = test_names.VAGUE | {"asked", "before", "beside", "each", "now", "one", "place", "shown"}
"""Names that fit every value. Those of tests/test_names.py are not allowed in the package."""


Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.ClassDef | Function


@dataclass(frozen=True)
class Figure:
    """A figure and where it comes from.

    Attributes:
        value: A count, or a density to one decimal.
        places: Places that add to it, the worst first.
    """

    value: float
    places: Sequence[str]


@dataclass(frozen=True)
class Tree:
    """A checkout with a package, its tests and its pages.

    Attributes:
        root: Folder of the checkout.
    """

    root: Path

    @cached_property
    def package(self) -> Package:
        """The package and its import graph."""
        return Package(self.root / "pytest_mlperf")

    @cached_property
    def sources(self) -> dict[str, ast.Module]:
        """Syntax trees of the package's modules, by their path below the root."""
        return {self.below(path): parsed(path) for path in self.package.modules.values()}

    @cached_property
    def tests(self) -> dict[str, ast.Module]:
        """Syntax trees of tests and their helpers, by their path below the root."""
        paths = sorted((self.root / "tests").rglob("*.py"))
        return {self.below(path): parsed(path) for path in paths}

    @cached_property
    def definitions(self) -> dict[str, Definition]:
        """Classes and functions of the package by file, line and name."""
        return {
            f"{file}:{node.lineno} {node.name}": node
            for file, module in self.sources.items()
            for node in ast.walk(module)
            if isinstance(node, Definition)
        }

    @cached_property
    def docstrings(self) -> dict[str, list[str]]:
        """Docstrings of the package by file."""
        return {file: list(plain.docstrings(module)) for file, module in self.sources.items()}

    @cached_property
    def lines(self) -> dict[str, int]:
        """Lines of each module of the package, by its name."""
        return {
            name: len(path.read_text("utf-8").splitlines())
            for name, path in self.package.modules.items()
        }

    def below(self, path: Path) -> str:
        """Return a path below the root."""
        return path.relative_to(self.root).as_posix()


def most_first(sizes: Mapping[str, float]) -> list[str]:
    """Return places with their sizes, the largest first."""
    ranked = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    return [f"{place} ({size:,g})" for place, size in ranked if size]


def counted(places: Iterable[str]) -> Figure:
    """Return how many places there are."""
    listed = list(places)
    return Figure(len(listed), listed)


def summed(sizes: Mapping[str, int]) -> Figure:
    """Return the sum of sizes."""
    return Figure(sum(sizes.values()), most_first(sizes))


def density(hits: Mapping[str, int], total: int, per: int) -> Figure:
    """Return the hits of all files per so many texts, names or sentences."""
    return Figure(round(per * sum(hits.values()) / max(1, total), 1), most_first(hits))


def through_a_wall(tree: Tree) -> Figure:
    """Count imports that go through a wall."""
    package = tree.package
    edges = [
        *package.imports_of_kernel(),
        *package.imports_of_adapters(),
        *package.imports_between_addons(),
    ]
    return counted(f"{name} -> {other}" for name, other in sorted(edges))


def circles(tree: Tree) -> Figure:
    """Count import cycles."""
    return counted(" -> ".join(trail) for trail in tree.package.circles())


def kernel_names(tree: Tree, part: str) -> Figure:
    """Count the names of the kernel that a part uses."""
    names = tree.package.kernel_names(part, public=part == "adapters")
    return summed({module: len(imported) for module, imported in names.items()})


def length(node: Definition) -> int:
    """Return how many lines a definition has, without its decorators."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def large_classes(tree: Tree) -> Figure:
    """Count classes with too many lines or methods."""
    sizes = sorted(
        (length(node), sum(isinstance(n, Function) for n in node.body), place)
        for place, node in tree.definitions.items()
        if isinstance(node, ast.ClassDef)
    )
    return counted(
        f"{place} ({lines} lines, {methods} methods)"
        for lines, methods, place in reversed(sizes)
        if lines > MAX_CLASS_LINES or methods > MAX_METHODS
    )


def fields(tree: Tree) -> dict[str, int]:
    """Return the number of fields of each dataclass, without inherited ones."""
    return {
        place: sum(
            isinstance(n, ast.AnnAssign) and "ClassVar" not in ast.unparse(n.annotation)
            for n in node.body
        )
        for place, node in tree.definitions.items()
        if isinstance(node, ast.ClassDef)
        and any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
    }


def large_dataclasses(tree: Tree) -> Figure:
    """Count dataclasses with too many fields, except the one with a limit of its own."""
    sizes = {place: size for place, size in fields(tree).items() if size > MAX_FIELDS}
    return counted(place for place in most_first(sizes) if f" {OWN_LIMIT} " not in place)


def option_fields(tree: Tree) -> Figure:
    """Count the fields of the dataclass with a limit of its own."""
    sizes = fields(tree).items()
    return summed({place: size for place, size in sizes if place.endswith(f" {OWN_LIMIT}")})


def long_functions(tree: Tree) -> Figure:
    """Count functions with too many lines."""
    sizes = {
        place: length(node)
        for place, node in tree.definitions.items()
        if isinstance(node, Function) and length(node) > MAX_FUNCTION_LINES
    }
    return counted(most_first(sizes))


def repeated_constants(tree: Tree) -> Figure:
    """Count names of constants that several modules bind."""
    modules: dict[str, set[str]] = defaultdict(set)
    for file, module in tree.sources.items():
        for name, _ in cells.constants(module):
            modules[name].add(file)
    repeated = {n: len(m) for n, m in modules.items() if len(m) >= MIN_MODULES_OF_CONSTANT}
    return counted(most_first(repeated))


def matrices(tree: Tree) -> Figure:
    """Count test functions with too many parametrised cells, as far as their files show them."""
    sizes = {
        f"{file}::{name}": number
        for file, module in tree.tests.items()
        for name, number in cells.cells_of_tests(module).items()
        if number > MAX_CELLS
    }
    return counted(most_first(sizes))


def marked_docstrings(tree: Tree) -> Figure:
    """Return the docstrings with a mark of unclear language, in percent."""
    hits = {file: sum(map(plain.is_marked, texts)) for file, texts in tree.docstrings.items()}
    return density(hits, sum(map(len, tree.docstrings.values())), 100)


def vague_names(modules: Mapping[str, ast.Module]) -> Figure:
    """Return the vague names of 1,000 bound names."""
    names = {file: list(plain.bound_names(module)) for file, module in modules.items()}
    hits = {file: sum(name in VAGUE for name in of_file) for file, of_file in names.items()}
    return density(hits, sum(map(len, names.values())), 1000)


def sentences(texts: Mapping[str, Iterable[str]], is_hit: Callable[[str], bool]) -> Figure:
    """Return the sentences with a property, of 1,000."""
    by_file = {
        file: [sentence for text in of_file for sentence in plain.sentences(text)]
        for file, of_file in texts.items()
    }
    hits = {file: sum(map(is_hit, of_file)) for file, of_file in by_file.items()}
    return density(hits, sum(map(len, by_file.values())), 1000)


def is_long(sentence: str) -> bool:
    """Return whether a sentence has too many words."""
    return len(sentence.split()) > MAX_WORDS


def pages(tree: Tree) -> dict[str, list[str]]:
    """Return the prose of each page of the documentation."""
    paths = sorted((tree.root / "docs").rglob("*.md"))
    return {tree.below(path): [plain.prose(path.read_text("utf-8"))] for path in paths}


def duplicate_pairs(tree: Tree) -> Figure:
    """Count pairs of places that share lines of code, as `make duplicates` prints them."""
    pairs = duplicates.pairs(tree.package.modules.values())
    return counted(
        f"{tree.below(pair.first)}:{pair.first_line} and "
        f"{tree.below(pair.second)}:{pair.second_line} ({pair.lines} lines)"
        for pair in sorted(pairs, key=lambda pair: (-pair.lines, pair))
    )


def imported_by_version(tree: Tree) -> Figure:
    """Count the modules of the package that `pytest-mlperf --version` imports, in a new process."""
    script = (
        "import sys\nfrom pytest_mlperf.cli import main\n"
        "try: main(['--version'])\nexcept SystemExit: pass\n"
        "print(*(name for name in sys.modules if name.split('.')[0] == 'pytest_mlperf'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tree.root, capture_output=True, text=True, check=True
    )
    return counted(reversed(done.stdout.splitlines()[-1].split()))


def lines_of(tree: Tree, *parts: str) -> Figure:
    """Return the lines of the modules of some parts: "" (the kernel), adapters, addons."""
    return summed({n: k for n, k in tree.lines.items() if part_of(n).split(".")[0] in parts})


FIGURES: dict[str, Callable[[Tree], Figure]] = {
    "imports_through_a_wall": through_a_wall,
    "circles": circles,
    "kernel_names_of_adapters": lambda tree: kernel_names(tree, "adapters"),
    "kernel_names_of_addons": lambda tree: kernel_names(tree, "addons"),
    "classes_over_300_lines_or_25_methods": large_classes,
    "dataclasses_over_24_fields": large_dataclasses,
    "fields_of_options": option_fields,
    "functions_over_60_lines": long_functions,
    "tests_over_30_cells": matrices,
    "constants_in_3_modules": repeated_constants,
    "lines_of_kernel": lambda tree: lines_of(tree, ""),
    "lines_of_adapters": lambda tree: lines_of(tree, "adapters"),
    "lines_of_addons": lambda tree: lines_of(tree, "addons"),
    "lines_of_package": lambda tree: lines_of(tree, "", "adapters", "addons"),
    "modules_imported_by_version": imported_by_version,
    "marked_docstrings_percent": marked_docstrings,
    "vague_names_per_1000": lambda tree: vague_names(tree.sources),
    "vague_names_in_tests_per_1000": lambda tree: vague_names(tree.tests),
    "long_sentences_in_docstrings_per_1000": lambda tree: sentences(tree.docstrings, is_long),
    "long_sentences_in_docs_per_1000": lambda tree: sentences(pages(tree), is_long),
    "marked_sentences_in_docs_per_1000": lambda tree: sentences(pages(tree), plain.is_marked),
    "duplicate_pairs": duplicate_pairs,
}
"""Each figure by its name in the file of limits."""


def lowered(text: str, figures: Mapping[str, Figure]) -> str:
    """Return the file of limits with each limit under `[reached]` lowered to its figure."""
    for name, limit in tomllib.loads(text)["reached"].items():
        if figures[name].value < limit:
            value = f"{figures[name].value:_}"
            text = re.sub(rf"^{name} = [\d._]+", f"{name} = {value}", text, flags=re.MULTILINE)
    return text


def table(figures: Mapping[str, Figure], limits: Mapping[str, float]) -> Iterator[str]:
    """Yield a line for each figure: its name, its limit, its value and its worst place."""
    yield f"{'figure':38} {'limit':>8} {'now':>8}  worst"
    for name, figure in figures.items():
        worst = figure.places[0] if figure.places else ""
        yield f"{name:38} {limits[name]:>8,} {figure.value:>8,}  {worst}".rstrip()


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Print the figures beside their limits; return 1 if a figure is above its limit."""
    parser = argparse.ArgumentParser(description="Compare the project's figures with its limits.")
    parser.add_argument("--write", action="store_true", help="lower limits to the figures reached")
    parser.add_argument(
        "--places", metavar="FIGURE", choices=FIGURES, help="print its places alone"
    )
    options = parser.parse_args(arguments)
    tree = Tree(root)
    if options.places:
        print(*FIGURES[options.places](tree).places, sep="\n")
        return 0
    text = (root / LIMITS).read_text("utf-8")
    groups = tomllib.loads(text)
    limits = groups["reached"] | groups["allowed"]
    if differing := set(limits) ^ set(FIGURES):
        print(f"{LIMITS} and tools/house.py differ in {', '.join(sorted(differing))}")
        return 1
    figures = {name: figure(tree) for name, figure in FIGURES.items()}
    print(*table(figures, limits), sep="\n")
    if options.write:
        (root / LIMITS).write_text(lowered(text, figures), "utf-8")
    for name in groups["reached"]:
        if figures[name].value < limits[name]:
            done = (
                "is lowered" if options.write else "may be lowered: python tools/house.py --write"
            )
            print(f"{name}: {figures[name].value:,} is below {limits[name]:,}; the limit {done}")
    above = [name for name in figures if figures[name].value > limits[name]]
    for name in above:
        print(f"{name}: {figures[name].value:,} is above the limit of {limits[name]:,}. The worst:")
        print(*(f"    {place}" for place in figures[name].places[:SHOWN_PLACES]), sep="\n")
        if len(figures[name].places) > SHOWN_PLACES:
            print(f"    all of them: python tools/house.py --places {name}")
    return int(bool(above))


if __name__ == "__main__":
    gc.disable()  # syntax trees stay until the end: collections would take half of the time
    sys.exit(main())
