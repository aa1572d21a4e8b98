"""The map of the package: floors, imports point down, inner modules stay inside."""

from __future__ import annotations

import ast
import re
import sys
import tomllib

from tests.sources import OURS, PACKAGE, ROOT, is_inside, parsed, part_of

FLOORS = (
    {"judge"},  # the statistics: the standard library alone
    {"core"},  # the domain is pure
    {"processes", "stores"},  # a child that is surely ended; files
    {"hardware", "rounds"},  # the machine and MLPerf's tables
    {"registry"},
    {"suite"},
    {"hookspecs"},  # of plain values
    {"run"},  # one process, one run
    {"bench"},  # one case
    {"reports"},  # what people and programs read of a session, and of what lies beside it
    {"builtin", "cli", "plugin", "testing"},  # what people call, and what the registry loads
    {"extension"},  # the public names; each imports one of those below
    {"adapters", "addons"},
    {"__main__"},
)
"""A folder or module of the package's root imports itself and what lies on lower floors."""

ONLY = {
    "httptools": {"adapters.connections"},
    "jinja2": {"addons.html"},
    "vl_convert": {"addons.html"},
    "mlperf_loadgen": {"run.worker"},
    "pynvml": {"hardware._nvml"},
    "onnxruntime": {"adapters.engines.onnxruntime"},
    "pycocotools": {"adapters.scorers.detection"},
    "torch": {
        "adapters.builders",
        "adapters.builders.llmcompressor",
        "adapters.builders.modelopt",
        "adapters.builders.torchao",
        "adapters.builders.torchao_unet",
        "adapters.datasets.files",
        "adapters.engines.torch",
        "hardware.control",
        "adapters.scorers.images",
    },
    "tritonclient": {"adapters.engines.triton"},
    "vllm": {"adapters.engines.vllm"},
    "xdist": {"plugin.xdist"},
    "psycopg": {"stores.database"},
    "ray": {"addons.fleet"},
    "sqlite3": {"stores.database"},
    "yaml": {"stores.endpoints"},
}
"""Outside things that one module or package knows, or few, each for its own use."""


MODULES = OURS.modules
INSIDE = sorted(set(MODULES) - {""})


def floor(name: str) -> int:
    """Return the floor of a module, by its folder at the root."""
    top = name.split(".", maxsplit=1)[0]
    return next(number for number, folders in enumerate(FLOORS) if top in folders)


def entry_points() -> dict[str, dict[str, str]]:
    """Return what pyproject.toml names to the registry: targets by name, by group."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    groups: dict[str, dict[str, str]] = project["entry-points"]
    return groups


def extensions() -> set[str]:
    """Return the modules that name an engine, data set, scorer or builder to the registry."""
    groups = entry_points()
    targets = [t for group in groups if group != "pytest11" for t in groups[group].values()]
    return {target.partition(":")[0].removeprefix("pytest_mlperf.") for target in targets}


def test_imports_point_down() -> None:
    """A module imports its own folder of the root or a lower floor: no two folders in a circle."""
    upward = {
        (name, other)
        for name in INSIDE
        for other in OURS.graph[name]
        if other.split(".")[0] != name.split(".")[0] and floor(other) >= floor(name)
    }

    assert upward == set()


def test_the_page_shows_the_same_floors() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", page, re.MULTILINE)
    floors_on_page = {int(number): set(re.findall(r"`(\w+)`", names)) for number, names in rows}

    assert floors_on_page == dict(enumerate(FLOORS, start=1))


def test_inner_modules_are_imported_inside_their_package_alone() -> None:
    """A name that begins with an underscore belongs to the package it lies in."""
    outside = {
        (name, other)
        for name in INSIDE
        for other in OURS.graph[name]
        for package, _, module in [other.rpartition(".")]
        if module.startswith("_") and not is_inside(name, package)
    }

    assert outside == set()


def test_adapters_never_import_each_other() -> None:
    """An engine, data set, scorer or builder is imported by its own package at most."""
    adapters = extensions()
    assert len(adapters) > 40

    assert {
        (user, name)
        for user, imported in OURS.graph.items()
        for name in imported & adapters
        if not is_inside(user, name)
    } == set()


INTERFACE = PACKAGE / "addons" / "interface.toml"


def test_the_kernel_imports_no_adapter_and_no_add_on() -> None:
    """It reaches them by entry points: it neither imports nor names one of their modules."""
    named = {
        name
        for name, path in MODULES.items()
        if not part_of(name)
        and re.search(r"pytest_mlperf\.(adapters|addons)\b", path.read_text("utf-8"))
    }

    assert OURS.imports_of_kernel() == set()
    assert named == set()


def test_add_ons_use_the_interface_of_the_kernel_and_no_other_add_on() -> None:
    """interface.toml lists it, and rarely changes."""
    names = {module: sorted(of) for module, of in OURS.kernel_names("addons", public=False).items()}
    listed = tomllib.loads(INTERFACE.read_text("utf-8"))["names"]

    assert OURS.imports_between_addons() == set()
    assert names == listed
    private = re.compile(r"\._(?!_)")
    assert [m for m, of in listed.items() for n in of if private.search(f"{m}.{n}")] == []


def test_adapters_import_public_names_and_their_own_modules_only() -> None:
    """The proof that the public face suffices for an engine, data set, scorer or builder."""
    assert set(OURS.kernel_names("adapters")) == {"pytest_mlperf", "pytest_mlperf.extension"}
    assert OURS.imports_of_adapters() == set()


def test_there_are_no_import_cycles() -> None:
    assert OURS.circles() == []


def roots_of(name: str) -> set[str]:
    """Return the top-level packages that a module imports."""
    return {module.split(".")[0] for module in OURS.imports[name]}


def test_core_and_judge_know_only_the_standard_library() -> None:
    """And `judge` nothing else of this package."""
    impure = {"os", "time", "random", "subprocess", "socket", "threading", "io"}
    declares = {"annotated_types"}  # names for ranges; whoever reads a file checks them
    pure = sys.stdlib_module_names - impure | declares | {"pytest_mlperf"}
    outside = {name: roots_of(name) - pure for name in INSIDE if name.startswith(("core", "judge"))}

    assert {name: roots for name, roots in outside.items() if roots} == {}
    statistics = {name for name in INSIDE if is_inside(name, "judge")}
    assert set().union(*(OURS.graph[name] for name in statistics)) <= statistics


def test_one_module_per_outside_thing() -> None:
    """LoadGen, NVML and the engines' libraries are each known to one module or package."""
    texts = {name: path.read_text("utf-8") for name, path in MODULES.items()}
    others = {
        (thing, name)
        for thing, users in ONLY.items()
        for name, text in texts.items()
        if thing in roots_of(name) or f'import_module("{thing}")' in text
        if not any(is_inside(name, user) for user in users)
    }

    assert others == set()


def test_only_the_shell_knows_pytest() -> None:
    shell = ("plugin", "hookspecs", "addons")
    shellless = [name for name in INSIDE if not name.startswith(shell)]

    assert [name for name in shellless if roots_of(name) & {"pytest", "_pytest"}] == []


def test_no_engine_is_named_outside_the_engines() -> None:
    engines = set(entry_points()["pytest_mlperf.engines"])
    named = [
        f"{name}:{node.lineno}"
        for name, path in MODULES.items()
        if not name.startswith("adapters")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
        if isinstance(side, ast.Constant) and side.value in engines
    ]

    assert named == []


def test_the_error_levels_of_rule_r_are_used_by_its_own_module_alone() -> None:
    """docs/architecture.md lists what to read to change the rule; `core` applies it as it is."""
    applying = ("ruling", "outcomes", "sample", "screening", "disturbance", "criteria")
    levels = {
        name: node.attr
        for name in applying
        for node in ast.walk(parsed(OURS.modules[f"core.rulings.{name}"]))
        if isinstance(node, ast.Attribute) and node.attr in {"alpha", "beta"}
    }
    assert levels == {}

    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    section = page.partition("## To change the rule of judgement")[2].partition("\n## ")[0]
    read = re.findall(r"^\d\. `(.+?)\.py`", section, re.MULTILINE)
    assert 0 < len(read) <= 4
    assert [name for name in read if name.replace("/", ".") not in OURS.modules] == []
