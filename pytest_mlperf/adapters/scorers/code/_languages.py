"""Assemble, compile and run programs of MBXP in each language, as mxeval does.

Source: mxeval/execution.py of https://github.com/amazon-science/mxeval (e09974f). TypeScript is
compiled with `tsc` instead of `npx tsc`, as in language/mixtral-8x7b/Dockerfile.eval of
https://github.com/mlcommons/inference.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_mlperf.adapters.scorers.code.sandbox import (
    BOX,
    MIB,
    SandboxStep,
    readable_python,
    visible_paths,
)

RUN_SECONDS = 20.0
"""MLPerf's limit for a program, in evaluate_mbxp.py of its Mixtral 8x7B benchmark."""

COMPILE_SECONDS = 100.0
MAX_PROGRAM_BYTES = 2048 * MIB
ADDRESS_BYTES = 4096 * MIB
PROCESSES = 32
NODE_PROCESSES = 64
"""Limit for Node, which has about ten threads of its own."""

LIBRARIES_FOLDER = "/libraries"
NODE_FOLDERS = ("/usr/share/nodejs", "/usr/lib/node_modules", "/usr/local/lib/node_modules")

DRIVER = Path(__file__).with_name("python.py")


class MissingError(Exception):
    """Report that a program or library that a language needs is not installed."""


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """Hold the commands that run a program of one language in the sandbox.

    Attributes:
        file: Name of the file with the program.
        steps: Commands, in order, each with its limits.
        readable: Additional paths that the commands can read: path in the sandbox to real path.
        environment: Additional environment variables.
        files: Additional files for the commands: name to content.
    """

    file: str
    steps: tuple[SandboxStep, ...]
    readable: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


def source(language: str, code: str, test: str, entry_point: str) -> str:
    return f"{code}\n{test}\ncheck({entry_point})" if language == "python" else code + test


def python_toolchain(driver: Path, *packages: str) -> Toolchain:
    """Return a toolchain that runs the script `driver` with this Python.

    numpy and `packages` can be imported if they are installed.
    """
    program, readable = readable_python()
    readable = dict(readable)
    for name in ("numpy", *packages):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            package = Path(os.path.realpath(spec.submodule_search_locations[0]))
            for folder in (package, package.with_name(f"{name}.libs")):
                if folder.is_dir():
                    readable[f"{LIBRARIES_FOLDER}/python/{folder.name}"] = str(folder)
    files = {"driver": driver.read_bytes()}
    if driver != DRIVER:
        files["guard"] = DRIVER.read_bytes()
    return Toolchain(
        file="program.py",
        steps=(_run(program, "-S", "-s", "-P", "-B", "driver"),),
        readable=readable,
        environment={"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        files=files,
    )


def _cpp() -> Toolchain:
    compiler, readable = _tool("g++")
    return Toolchain(
        file="main.cpp",
        steps=(
            _run(compiler, "main.cpp", "-o", "main_cpp", wall_s=COMPILE_SECONDS),
            _run(f"{BOX}/main_cpp"),
        ),
        readable=readable,
    )


def _javascript() -> Toolchain:
    node, readable = _tool("node")
    prefix = Path(node).parents[1] / "lib" / "node_modules"
    folders = [*os.environ.get("NODE_PATH", "").split(os.pathsep), str(prefix), *NODE_FOLDERS]
    candidates = [folder for folder in folders if folder and Path(folder, "lodash").is_dir()]
    if not candidates:
        raise MissingError(
            "node cannot find the module lodash, which the tests import (npm install -g lodash, or "
            "set NODE_PATH to its folder)"
        )
    modules = f"{LIBRARIES_FOLDER}/node_modules"
    lodash = os.path.realpath(Path(candidates[0], "lodash"))
    return Toolchain(
        file="main.js",
        steps=(_run_node(node, f"{BOX}/main.js"),),
        readable={**readable, f"{modules}/lodash": lodash},
        environment={"NODE_PATH": modules},
    )


def _typescript() -> Toolchain:
    """Return the toolchain of TypeScript: tsc, then node.

    Exit code 2 of tsc is accepted, since the type declarations of "assert" are missing.
    """
    node, readable = _tool("node")
    tsc, more = _tool("tsc")
    command = (node, os.path.realpath(tsc), f"{BOX}/main", "--target", "es5", "--lib", "es2016")
    return Toolchain(
        file="main.ts",
        steps=(
            _run_node(*command, wall_s=COMPILE_SECONDS, goes_on=frozenset({2})),
            _run_node(node, f"{BOX}/main.js"),
        ),
        readable={**readable, **more},
    )


def _php() -> Toolchain:
    php, readable = _tool("php")
    settings = "/etc/php"
    more = {settings: settings} if Path(settings).is_dir() else {}
    return Toolchain(
        file="main.php", steps=(_run(php, f"{BOX}/main.php"),), readable={**readable, **more}
    )


def _ruby() -> Toolchain:
    ruby, readable = _tool("ruby")
    return Toolchain(file="main.rb", steps=(_run(ruby, f"{BOX}/main.rb"),), readable=readable)


TOOLCHAINS: Mapping[str, Callable[[], Toolchain]] = {
    "cpp": _cpp,
    "javascript": _javascript,
    "php": _php,
    "python": lambda: python_toolchain(DRIVER),
    "ruby": _ruby,
    "typescript": _typescript,
}
"""Functions that return the toolchains of the languages that MLPerf's reference script runs.

They raise MissingError if a program is not on PATH.
"""


def _tool(name: str) -> tuple[str, dict[str, str]]:
    path = shutil.which(name)
    if path is None:
        raise MissingError(f"{name} is not on PATH")
    real = os.path.realpath(path)
    if not visible_paths(real):
        return path, {}
    prefix = Path(real).parents[1]
    private = (Path.home(), Path.cwd(), Path(tempfile.gettempdir()))
    whole = Path(real).parent.name == "bin" and not any(
        folder.resolve().is_relative_to(prefix) for folder in private
    )
    return real, visible_paths(str(prefix) if whole else real)


def _run(*command: str, wall_s: float = RUN_SECONDS) -> SandboxStep:
    return SandboxStep(
        command=command,
        wall_s=wall_s,
        cpu_s=int(2 * wall_s),
        memory_bytes=MAX_PROGRAM_BYTES,
        address_bytes=ADDRESS_BYTES,
        processes=PROCESSES,
    )


def _run_node(
    *command: str, wall_s: float = RUN_SECONDS, goes_on: frozenset[int] = frozenset({0})
) -> SandboxStep:
    step = _run(*command, wall_s=wall_s)
    return replace(step, address_bytes=None, processes=NODE_PROCESSES, goes_on=goes_on)
