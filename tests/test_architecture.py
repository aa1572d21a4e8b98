"""The map of the package: four layers, imports point down, one module per outside thing."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "pytest_mlperf"

LAYERS = {
    # 4: the pytest shell may import pytest
    "plugin": 4,
    "options": 4,
    "carry": 4,
    "checks": 4,
    "collect": 4,
    "fixtures": 4,
    "held": 4,
    "invocation": 4,
    "live": 4,
    "measuring": 4,
    "session": 4,
    "suspicion": 4,
    "xdist": 4,
    "reports.benchmark": 4,
    # 3: the pipeline knows no pytest
    "accuracy": 3,
    "applied": 3,
    "bench": 3,
    "case_accuracy": 3,
    "calibrated": 3,
    "case_runs": 3,
    "cli": 3,
    "__main__": 3,
    "confirm": 3,
    "efficiency": 3,
    "keeping": 3,
    "pair": 3,
    "performance": 3,
    "phases": 3,
    "registry": 3,
    "run": 3,
    "suite": 3,
    "verdicts": 3,
    # 2: adapters know core and their one library each
    "builders": 2,
    "datasets": 2,
    "engines": 2,
    "hardware": 2,
    "reports": 2,
    "rounds": 2,
    "scorers": 2,
    "stores": 2,
    # 1: the domain is pure
    "core": 1,
}
"""Longest prefix wins: "reports.benchmark" before "reports"."""

SHARED = {
    "builders.source",
    "datasets.array_files",
    "datasets.checksum",
    "datasets.frames",
    "datasets.images",
    "datasets.json_records",
    "datasets.latents",
    "datasets.pickled_arrays",
    "datasets.pickled_frames",
    "datasets.pickles",
    "datasets.prompts",
    "engines.files",
    "engines.generation",
    "engines.lateness",
    "engines.model_folder",
    "engines.parallel",
    "engines.prompts",
    "engines.queueing",
    "engines.server_json",
    "engines.serving",
    "engines.streaming",
    "engines.tasks",
    "hardware.cpu",
    "hardware.nvidia",
    "hardware.nvml",
    "hardware.nvml_quantities",
    "hardware.surroundings",
    "hardware.visible",
    "reports.benchmark_json",
    "reports.causes",
    "reports.cells",
    "reports.commands",
    "reports.figures",
    "reports.layout",
    "reports.precisions_plot",
    "reports.properties",
    "reports.rows",
    "scorers.clip",
    "scorers.decode",
    "scorers.frechet",
    "scorers.gsm8k_answer",
    "scorers.inception",
    "scorers.mbxp",
    "scorers.porter",
    "scorers.rouge_text",
    "scorers.sandbox",
    "scorers.sentences",
    "scorers.tokenizer",
    "stores.alone",
    "stores.atomic",
    "stores.defects",
    "stores.documents",
    "stores.foreign",
    "stores.score_arrays",
}
"""What the adapters of one folder share; otherwise they never import each other."""

ONLY = {
    "aiohttp": {"engines.openai"},
    "jinja2": {"reports.html"},
    "vl_convert": {"reports.html"},
    "mlperf_loadgen": {"run.loadgen"},
    "pynvml": {"hardware.nvidia", "hardware.sampler"},
    "matplotlib": {"reports.precisions", "reports.timeline"},
    "onnxruntime": {"engines.onnxruntime"},
    "pycocotools": {"scorers.mean_ap"},
    "torch": {
        "builders.llmcompressor",
        "builders.modelopt",
        "builders.source",
        "builders.torchao",
        "datasets.latents",
        "engines.torch",
        "hardware.control",
        "scorers.clip",
        "scorers.inception",
    },
    "tritonclient": {"engines.triton"},
    "vllm": {"engines.vllm"},
    "xdist": {"xdist"},
}
"""Outside things that one adapter knows, or few, each for its own use."""

LONGEST = 330
"""Lines of a module; the guide is 300, and splitting one subject to meet it would scatter it."""


def modules() -> dict[str, Path]:
    """Return every module by its name below the package."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        found[name] = path
    return found


MODULES = modules()


def layer(name: str) -> int:
    """Return the layer of a module, by the longest prefix in the map."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        prefix = ".".join(parts[:length])
        if prefix in LAYERS:
            return LAYERS[prefix]
    raise KeyError(f"{name} is in no layer; add it to the map")


def imports(path: Path) -> Iterator[str]:
    """Yield every imported module, also those inside functions; type-only ones are left out."""
    tree = ast.parse(path.read_text("utf-8"))
    type_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in type_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            for alias in node.names:
                if f"{node.module}.{alias.name}".removeprefix("pytest_mlperf.") in MODULES:
                    yield f"{node.module}.{alias.name}"


def adapter(name: str) -> str:
    """Return the adapter a module belongs to.

    The modules of one package, as engines.torch, are one adapter, and so are a module and those
    that carry its name in front, as datasets.squad and datasets.squad_features.
    """
    folder, _, own = ".".join(name.split(".")[:2]).partition(".")
    if not own:
        return folder
    heads = [own[:end] for end, letter in enumerate(own) if letter == "_"]
    return f"{folder}.{next((h for h in heads if f'{folder}.{h}' in MODULES), own)}"


def ours(path: Path) -> set[str]:
    """Return the modules of this package that a file imports."""
    names = {name.removeprefix("pytest_mlperf.") for name in imports(path)}
    return names & set(MODULES)


@pytest.mark.parametrize("name", sorted(set(MODULES) - {""}))
def test_imports_point_down(name: str) -> None:
    """A module imports its own layer or a lower one."""
    mine = layer(name)

    assert {other for other in ours(MODULES[name]) if layer(other) > mine} == set()


@pytest.mark.parametrize("name", sorted(n for n in MODULES if n and layer(n) == 2))
def test_adapters_never_import_each_other(name: str) -> None:
    """An adapter imports core, and what its own folder shares."""
    folder = name.split(".", maxsplit=1)[0]
    adapters = {other for other in ours(MODULES[name]) if layer(other) == 2}
    siblings = {other for other in adapters if other.startswith(f"{folder}.")}
    others = {other for other in siblings if adapter(other) != adapter(name)}
    others = {other for other in others if adapter(other) not in SHARED}

    assert adapters - siblings <= {folder}
    assert others <= SHARED


@pytest.mark.parametrize("name", sorted(n for n in MODULES if n.startswith("core")))
def test_core_knows_only_the_standard_library(name: str) -> None:
    """No outside library that does anything, and none of the modules that do I/O or read clocks."""
    impure = {"os", "pathlib", "time", "random", "subprocess", "socket", "threading", "io"}
    outside = {
        module.split(".")[0]
        for module in imports(MODULES[name])
        if not module.startswith("pytest_mlperf")
    }

    declares = {"annotated_types"}  # names for ranges; whoever reads a file checks them
    assert outside <= sys.stdlib_module_names - impure | declares


@pytest.mark.parametrize("thing", sorted(ONLY))
def test_one_module_per_outside_thing(thing: str) -> None:
    """LoadGen, NVML and the engines' libraries are each known to one module or package."""
    users = {
        adapter(name)
        for name, path in MODULES.items()
        if any(module.split(".")[0] == thing for module in imports(path))
        or f'import_module("{thing}")' in path.read_text("utf-8")
    }

    assert users <= ONLY[thing]


@pytest.mark.parametrize("name", sorted(n for n in MODULES if n and layer(n) < 4))
def test_only_the_shell_knows_pytest(name: str) -> None:
    """The pipeline, the adapters and the domain run without pytest."""
    roots = {module.split(".")[0] for module in imports(MODULES[name])}

    assert roots & {"pytest", "_pytest"} == set()


def test_there_are_no_import_cycles() -> None:
    """The graph of imports at module level has no cycle."""
    graph = {name: ours(path) - {name} for name, path in MODULES.items() if name}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        if name not in done:
            for other in sorted(graph.get(name, ())):
                visit(other, (*trail, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


@pytest.mark.parametrize("name", sorted(MODULES))
def test_modules_stay_short(name: str) -> None:
    """A module that outgrows one subject is split."""
    assert len(MODULES[name].read_text("utf-8").splitlines()) <= LONGEST


ENGINES = {
    *("null", "onnxruntime", "torch", "torch-diffusion", "torch-module"),
    *("openai", "tensorrt", "tensorrt_llm", "triton", "vllm"),
}


def test_no_engine_is_named_outside_the_engines() -> None:
    """What differs between engines lives in the engine: nobody compares with an engine's name."""
    named = [
        f"{name}:{node.lineno}"
        for name, path in MODULES.items()
        if not name.startswith("engines")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
        if isinstance(side, ast.Constant) and side.value in ENGINES
    ]

    assert named == []
