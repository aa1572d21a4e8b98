"""Start a worker in another Python: `python .../run/child/environments.py SPEC.json`.

It runs as a script from a copy of this package, so that the other Python needs only what a worker
imports. It uses no inherited descriptor, variable or working folder, as a container passes none on:
events leave on stdout, commands arrive on stdin, and the engine's output goes to stderr. Its syntax
must parse in older Pythons, so that they can report their version.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

MIN_PYTHON = (3, 11)
NEEDED_PACKAGES = {"numpy": "numpy", "mlperf_loadgen": "mlcommons-loadgen"}
FAILURE_EXIT_CODE = 70


class StartEvents:
    """Send events to the parent until the worker's `Reporter` takes over."""

    def __init__(self) -> None:
        sys.stdout.flush()
        self.descriptor = os.dup(1)
        os.dup2(2, 1)

    def tell(self, **event: Any) -> None:
        """Send one event to the parent process, as a JSON line."""
        os.write(self.descriptor, (json.dumps(event) + "\n").encode())

    def fail(self, message: str) -> None:
        """Send the error event, and end the process."""
        about = {"layer": "worker", "kind": "RunError", "message": message}
        self.tell(event="error", **about, designed=True, log=None, traceback="")
        os._exit(FAILURE_EXIT_CODE)


def main(file: str, key: str) -> None:
    """Send this Python's version, then run spec `file`; errors name its suite key, `key`."""
    events = StartEvents()
    version = ".".join(map(str, sys.version_info[:3]))
    here = "{} ({})".format(sys.executable, key)  # noqa: UP032 - older ones
    if sys.version_info < MIN_PYTHON:
        events.fail("{} is Python {}; workers need 3.11 or newer".format(here, version))  # noqa: UP032
    events.tell(event="python", **_about(version))
    try:
        spec = json.loads(Path(file).read_text("utf-8"))
    except OSError as error:
        more = "if it runs in a container, mount this folder there"
        events.fail(f"{here} cannot read {file} ({error.strerror}); {more}")
    for name, value in spec["environment"].items():
        os.environ.pop(name, None)
        os.environ.update({name: value} if value is not None else {})
    # Replaces this script's folder, whose modules would shadow others of the same name.
    code = str(Path(__file__).absolute().parents[3])
    left = [entry for entry in sys.path[1:] if entry not in spec["import_not"]]
    sys.path[:] = [code, *spec["import_first"], *left]
    missing = [
        name for module, name in NEEDED_PACKAGES.items() if not importlib.util.find_spec(module)
    ]
    if missing:
        them = "them" if len(missing) > 1 else "it"
        events.fail(f"{here} lacks {' and '.join(missing)}: install {them} there")
    sys.path += [entry for entry in spec["import_path"] if entry not in sys.path]
    if "question" in spec:
        _answer(events, spec)
        return
    try:
        worker = importlib.import_module("pytest_mlperf.run.worker.worker")
    except ImportError as error:
        events.fail(f"{here} cannot import the worker: {error}")
    worker.main([file, "--events", str(events.descriptor)])


def _about(version: str) -> dict[str, Any]:
    from importlib import metadata
    from platform import freedesktop_os_release

    versions = {}
    for name in NEEDED_PACKAGES.values():
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    try:
        system = freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        system = None
    about = {"prefix": sys.prefix, "executable": sys.executable, "version": version}
    return {**about, "versions": versions, "system": system}


def _answer(events: StartEvents, spec: dict[str, Any]) -> None:
    """Answer `doctor`: send import errors by library, or the engine's error if there are none."""
    errors = importlib.import_module("pytest_mlperf.core.errors")
    question, lacking, error = spec["question"], {}, ["", ""]
    for library in question["libraries"]:
        events.tell(event="importing", library=library)
        try:
            importlib.import_module(library)
        except BaseException as exception:
            absent = isinstance(exception, ModuleNotFoundError) and exception.name == library
            reason = f"{type(exception).__name__}: {errors.text_of(exception)}"
            lacking[library] = "" if absent else reason
    if not lacking:
        error = _engine_lacks(question)
    events.tell(event="answer", lacking=lacking, error=error)


def _engine_lacks(question: dict[str, Any]) -> list[str]:
    registry = importlib.import_module("pytest_mlperf.registry")
    errors = importlib.import_module("pytest_mlperf.core.errors")
    try:
        for noun, target, options in question["imports"]:
            registry.imported(noun, target, options)
        engine = question["engine"]
        if engine:
            built = registry.resolve(engine["target"])(**engine["given"])
            for hook in ("require", "reach"):
                getattr(built, hook, lambda: None)()
    except errors.MlperfError as error:
        return [type(error).__name__, str(error), *error.options]
    except Exception as error:  # an engine's library may raise anything
        return ["EnvironmentFault", f"{type(error).__name__}: {error}".splitlines()[0]]
    return ["", ""]


if __name__ == "__main__":
    main(*sys.argv[1:3])
