"""Run a builder in its own process: `python .../run/checkpoints/child.py SPEC.json`.

It runs as a script, in this Python or from a copy of this package in another one, which then needs
only the builder's imports. Calibration prompts are always made in this Python, which has the data
set's libraries. Events leave on stdout; all other output goes to stderr. Its syntax must parse in
older Pythons, so that they can report their version.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

MIN_PYTHON = (3, 11)
FAILURE_EXIT_CODE = 70


def main(file: str) -> None:
    """Set up the import path, and run the task that the spec file names, see `TASKS`."""
    # Events leave on a copy of stdout; all other output goes to stderr.
    sys.stdout.flush()
    descriptor = os.dup(1)
    os.dup2(2, 1)
    if sys.version_info < MIN_PYTHON:
        here = ".".join(map(str, sys.version_info[:3]))
        message = f"{sys.executable} is Python {here}; builders need 3.11 or newer"
        event = {"event": "error", "layer": "build", "kind": "RunError", "message": message}
        refusal = {**event, "designed": True, "log": None, "traceback": ""}
        os.write(descriptor, (json.dumps(refusal) + "\n").encode())
        os._exit(FAILURE_EXIT_CODE)
    spec = json.loads(Path(file).read_text("utf-8"))
    # Replaces this script's folder, whose modules would shadow others of the same name.
    sys.path[:1] = [str(Path(__file__).absolute().parents[3])]
    importlib.import_module("pytest_mlperf.run.child.protocol").import_as_parent(
        spec["import_path"]
    )
    child = importlib.import_module("pytest_mlperf.run.child.reporter")
    child.guard_group()  # before any thread and any large import
    reporter = child.Reporter(descriptor)
    with reporter.blaming("build"):
        reporter.event("done", **TASKS[spec["task"]](spec, reporter))
    child.leave(0)  # threads and processes of libraries would block a normal exit


def about(spec: dict[str, Any], _: Any) -> dict[str, Any]:
    """Return the builder's library versions and code digest, without building anything."""
    import hashlib
    from importlib import metadata

    builder = importlib.import_module("pytest_mlperf.registry").imported("builder", spec["target"])
    versions, missing = {}, []
    for distribution in getattr(builder, "distributions", ()):
        try:
            versions[distribution] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            missing.append(distribution)
    digest = hashlib.sha256()
    for path in code_of(spec["target"].partition(":")[0]):
        digest.update(path.read_bytes())
    python = ".".join(map(str, sys.version_info[:3]))
    return {
        "versions": versions,
        "missing": missing,
        "code": digest.hexdigest(),
        "python": python,
        "executable": sys.executable,
    }


def code_of(module: str) -> list[Path]:
    """Return the source files of a builder's package, or of its module outside a package."""
    file = sys.modules[module].__file__
    if file is None:
        return []
    whole = (Path(file).parent / "__init__.py").is_file()
    return sorted(Path(file).parent.glob("*.py")) if whole else [Path(file)]


def build(spec: dict[str, Any], reporter: Any) -> dict[str, Any]:
    """Build a checkpoint as `spec` says, without code files; return "facts", "weights_sha256"."""
    errors = importlib.import_module("pytest_mlperf.core.errors")
    files = importlib.import_module("pytest_mlperf.stores.digests")
    some = importlib.import_module("pytest_mlperf.core.untrusted_text").some
    imported = importlib.import_module("pytest_mlperf.registry").imported
    source, target = Path(spec["source"]), Path(spec["folder"])
    prompts: list[list[int]] = []
    if spec["prompts"]:
        prompts = json.loads(Path(spec["prompts"]).read_text("utf-8"))["prompts"]

    def progress(done: int, total: int, unit: str) -> None:
        reporter.event("progress", done=done, total=total, what=unit)

    builder = imported("builder", spec["target"])(recipe=spec["recipe"], **spec["options"])
    facts = builder.build(source, target, prompts, progress)
    for path in spec["beside"]:
        if not (target / path).exists():
            (target / path).write_bytes((source / path).read_bytes())
    carries = sorted(p.name for p in target.rglob("*") if p.suffix in spec["refused"])
    if carries:
        raise errors.RunError(
            "build",
            f"the builder wrote {some(carries)}, which can contain code; it must write safetensors",
        )
    if not any((target / name).is_file() for name in ("config.json", "model_index.json")):
        raise errors.RunError("build", "the builder wrote no config.json, so it made no model")
    single = target / "model.safetensors"
    # Same order as engines use; reading the index would need torch, which builders may lack.
    weights = [single] if single.is_file() else sorted(target.rglob("*.safetensors"))
    if not weights:
        raise errors.RunError("build", "the builder wrote no weights: there is no safetensors file")
    for path in target.rglob("*.safetensors"):
        sort_metadata(path)
    return {
        "facts": {str(key): str(value) for key, value in facts.items()},
        "weights_sha256": files.sha256(weights),
    }


def sort_metadata(path: Path) -> None:
    """Sort the metadata of a safetensors file in place, so that equal builds have equal bytes."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        if "__metadata__" not in header:
            return
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= size:  # false only for a library that escapes less than Python
            file.seek(8)
            file.write(text.ljust(size))


def calibrate(spec: dict[str, Any], _: Any) -> dict[str, Any]:
    """Write the calibration prompts as JSON; return their number and hex SHA-256."""
    prompts = prompts_of(spec)
    atomic = importlib.import_module("pytest_mlperf.stores.atomic")
    atomic.write_text(Path(spec["file"]), json.dumps({"prompts": prompts}))
    hash_of = importlib.import_module("pytest_mlperf.run.checkpoints._store").hash_of
    return {"digest": hash_of(prompts), "samples": len(prompts)}


def prompts_of(spec: dict[str, Any]) -> list[list[int]] | list[str]:
    """Return calibration samples: token ids for a language model, captions for a pipeline."""
    from pytest_mlperf.core.errors import RunError
    from pytest_mlperf.registry import imported, target
    from pytest_mlperf.run.accuracy import fixed_order
    from pytest_mlperf.run.checkpoints._store import is_pipeline
    from pytest_mlperf.run.worker.samples import as_dataset

    folder = Path(spec["source"])
    options = spec["dataset"]["options"]
    dataset = as_dataset(imported("dataset", spec["dataset"]["target"], options)(**options))
    total, count = len(dataset), spec["count"]
    if count is not None and count > total:
        text = f"calibration needs {count:,} samples, the data set has {total:,}"
        raise RunError("build", f"{text}: set a lower number of samples")
    indices = sorted(fixed_order(total)[:count])
    form = "captions" if is_pipeline(folder) else "tokens"
    make = imported("form of calibration prompts", target("calibration", form))
    prompts: list[list[int]] | list[str] = make(folder, dataset, indices)
    return prompts


TASKS = {"about": about, "build": build, "calibration": calibrate}


if __name__ == "__main__":
    main(sys.argv[1])
