"""`pytest-mlperf new`: write the skeleton of an extension or add-on, and its contract test."""

from __future__ import annotations

import argparse
import keyword
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from pytest_mlperf import registry
from pytest_mlperf.cli.init import require_absent, write_all
from pytest_mlperf.cli.output import show
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.stores.foreign import read_toml

KINDS: Mapping[str, tuple[registry.AnyGroup, str, str]] = {
    "engine": ("engines", "docs/own-model.md", '[[engines]] use = "{}"'),
    "dataset": ("datasets", "docs/workloads.md", 'dataset = {{ use = "{}", path = "FILE" }}'),
    "scorer": ("scorers", "docs/workloads.md", 'scorer = {{ use = "{}" }}'),
    "addon": ("addons", "docs/extending.md", ""),
}
"""Group of the registry, page of the documentation and line of a suite, by kind.

The templates are templates/new/KIND.txt and KIND_test.txt. A new kind needs a row here.
"""

EXTENSION_NAME = re.compile("[a-z][a-z0-9_-]{0,19}")
"""Allowed names; a longer name would make lines of the templates too long."""

PYPROJECT = Path("pyproject.toml")

PROCESS_MARK = "@pytest.mark.process\n"
"""Marker of this project's tests whose checks import a registered extension in a child process."""

HELP = """\
Writes a small working engine, data set, scorer or add-on and its contract test,
to edit; never overwrites a file. If the project has a package, the module goes
there and the test to tests/. Otherwise both go to this folder, and a suite
names "module:Class".

needs: run it in the project's folder

examples:
  $ pytest-mlperf new engine my-runtime
      my_runtime_engine.py; then: pytest test_my_runtime_engine.py
  $ pytest-mlperf new scorer word_overlap --here
      in a checkout of pytest-mlperf: adds it there, with its entry point
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("kind", choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("name", metavar="NAME", help="its name in suites and messages")
    parser.add_argument(
        "--here", action="store_true", help="add it to pytest-mlperf itself, in a checkout"
    )


def run(parsed: argparse.Namespace) -> int:
    """Write a module and its test, with --here also the entry point; write all files or none."""
    kind, name = parsed.kind, parsed.name
    group, page, usage = KINDS[kind]
    project = _project(here=parsed.here)
    table = f"pytest_mlperf.{group}"
    _require_free(kind, name, project.get("entry-points", {}).get(table, {}))
    package = None if parsed.here else _package(project)
    module, test = _paths(kind, name, package, here=parsed.here)
    dotted = ".".join(module.with_suffix("").parts).removeprefix("src.")
    bare = name.replace("-", "_").removesuffix(f"_{kind}")
    class_name = f"{bare.title().replace('_', '')}{kind.title()}"
    target = f"{dotted}:{class_name}"
    line = f"from {dotted} import {class_name}\n"
    if kind == "addon":  # which is a module
        dotted = dotted.removesuffix(".__init__")
        inside, _, class_name = dotted.rpartition(".")
        target, line = (
            dotted,
            f"from {inside} import {class_name}\n" if inside else f"import {dotted}\n",
        )
    heading, entry = f'[project.entry-points."{table}"]', f'{name} = "{target}"'

    stem = name.replace("-", "_")
    words = {"name": name, "stem": stem, "option": stem.replace("_", "-"), "class_name": class_name}
    if parsed.here:  # imports of one package stand together
        words |= {"ours": f"import pytest\n\n{line}", "theirs": "", "mark": PROCESS_MARK}
        steps = ["make schemas", f"pytest {test}", f"describe it in {page} and CHANGELOG.md"]
    else:
        words |= {"ours": "", "theirs": f"\n{line}", "mark": ""}
        steps = [f"pytest {test}"]
        if usage:
            steps.append(f"in a suite: {usage.format(name if package else target)}")
    if package:
        steps = [f"add to {PYPROJECT}:", f"  {heading}", f"  {entry}", "pip install -e .", *steps]
    texts = {module: _filled(f"{kind}.txt", words), test: _filled(f"{kind}_test.txt", words)}
    if parsed.here and kind == "addon":
        texts[test.with_name("__init__.py")] = ""
    require_absent(texts, f"Choose another name: pytest-mlperf new {kind} NAME")
    if parsed.here:
        head, _, after = PYPROJECT.read_text("utf-8").partition(f"{heading}\n")
        entries, end, rest = after.partition("\n\n")
        texts[PYPROJECT] = f"{head}{heading}\n{entries}\n{entry}{end}{rest}"
    write_all(texts)
    show(f"wrote {path}" for path in texts)
    show(f"{'      ' if number else 'next: '}{step}" for number, step in enumerate(steps))
    return 0


def _project(*, here: bool) -> dict[str, Any]:
    """Return [project] of pyproject.toml, or {}.

    Raises MlperfError unless `here` is True exactly if the project is pytest-mlperf itself.
    """
    tables = read_toml(PYPROJECT, "project file") if PYPROJECT.exists() else {}
    project: dict[str, Any] = tables.get("project", {})
    ours = project.get("name") == "pytest-mlperf"
    if here and not ours:
        raise MlperfError(
            f"{Path.cwd()} is not a checkout of pytest-mlperf; nothing was written. "
            "Change to one, or remove --here"
        )
    if ours and not here:
        raise MlperfError(
            f"{Path.cwd()} is a checkout of pytest-mlperf; add --here to extend pytest-mlperf "
            "itself, or change to the folder of your own project"
        )
    return project


def _require_free(kind: str, name: str, listed: Mapping[str, str]) -> None:
    if not EXTENSION_NAME.fullmatch(name) or keyword.iskeyword(name):
        raise MlperfError(
            f"{name!r} cannot be the name of a module; nothing was written. Use a letter and up "
            "to 19 lower-case letters, digits, - and _, and no Python keyword"
        )
    registered = {each: entry.value for each, entry in registry.registered(KINDS[kind][0]).items()}
    if target := {**registered, **listed}.get(name):
        raise MlperfError(
            f"{kind} {name!r} exists already ({target}); nothing was written. Choose another name"
        )


def _package(project: Mapping[str, Any]) -> Path | None:
    """Return the folder of the project's package: of the same name, or the only one; else None."""
    if not project:
        return None
    root = Path("src") if Path("src").is_dir() else Path()
    packages = {path.parent for path in root.glob("*/__init__.py")} - {Path("tests")}
    called = root / str(project.get("name")).replace("-", "_").lower()
    return called if called in packages else packages.pop() if len(packages) == 1 else None


def _paths(kind: str, name: str, package: Path | None, *, here: bool) -> tuple[Path, Path]:
    stem = name.replace("-", "_")
    if here and kind == "addon":
        folder = Path("addons", stem)
        return "pytest_mlperf" / folder / "__init__.py", "tests" / folder / f"test_{stem}.py"
    if here:
        folder = Path("adapters", KINDS[kind][0])
        return "pytest_mlperf" / folder / f"{stem}.py", "tests" / folder / f"test_{stem}.py"
    file = f"{stem.removesuffix(f'_{kind}')}_{kind}.py"
    return (package or Path()) / file, Path("tests" if package else "", f"test_{file}")


def _filled(template: str, words: Mapping[str, str]) -> str:
    text = files("pytest_mlperf.cli").joinpath("templates/new", template).read_text("utf-8")
    return Template(text).substitute(words)
