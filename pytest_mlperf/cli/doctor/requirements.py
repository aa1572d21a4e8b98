"""Check the libraries of engines in the Python that runs them.

`python -m pytest_mlperf.cli.doctor.requirements` reads a request and writes an answer as JSON. In
another Python or a container, the script that starts workers answers the request.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pytest_mlperf import registry
from pytest_mlperf.core.errors import EnvironmentFault, MlperfError, SuiteError, UnavailableError
from pytest_mlperf.core.imports import distribution
from pytest_mlperf.core.job import Factory, Job
from pytest_mlperf.core.untrusted_text import broken
from pytest_mlperf.run.builds import Build, build_for
from pytest_mlperf.run.child import events
from pytest_mlperf.run.child.process import THIS_PYTHON
from pytest_mlperf.run.child.protocol import import_as_parent, import_path
from pytest_mlperf.suite.libraries import declared_libraries, install_command, is_here
from pytest_mlperf.suite.plan import Planned
from pytest_mlperf.suite.resolve import engine_place
from pytest_mlperf.suite.values import KeyPath

IMPORT_TIMEOUT_SECONDS = 120.0
CONTAINER_TIMEOUT_SECONDS = 300.0
ERROR_CLASSES = {kind.__name__: kind for kind in (SuiteError, UnavailableError)}

Failures = Mapping[str, str]
"""Libraries that are installed and cannot be imported, each with the reason."""


def run_captured(
    command: Sequence[str], limit_s: float, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command for at most `limit_s`, with captured text; `options` are for subprocess.run."""
    texts: Any = {"capture_output": True, "text": True, "errors": "replace"}
    return subprocess.run(command, timeout=limit_s, check=False, **texts, **options)


def _question(job: Job) -> dict[str, Any] | None:
    entry = registry.registered("engines").get(job.engine_use)
    if entry is None or not hasattr(registry.resolve(entry.value), "require"):
        return None
    case = {"model": job.model, "precision": job.case.precision, "dataset": None}
    arguments = {**job.engine.options, **case}
    return {"target": entry.value, "given": arguments, "path": import_path(job.suite)}


def _error(planned: Planned, answer: Sequence[str], where: str = "") -> MlperfError | None:
    kind, message, *at_fault = answer
    key = engine_place(planned, at_fault)
    return (
        ERROR_CLASSES.get(kind, EnvironmentFault)(f"{key}: {message}{where}") if message else None
    )


def require_library(planned: Planned, job: Job) -> None:
    """Call `require()` of a registered engine in a child process; raise its error."""
    question = _question(job)
    if question and (error := _error(planned, _run_check(json.dumps(question, sort_keys=True)))):
        raise error


def import_errors(planned: Planned, job: Job) -> Iterator[MlperfError]:
    """Import the suite's own classes that this Python needs; yield errors with their suite keys."""
    data, scored = job.dataset, job.scoring.data
    parts: list[tuple[registry.Group, KeyPath, Factory | None]] = [
        ("scorers", ("workload", "scorer"), job.scoring.scorer),
        ("datasets", planned.data.key("accuracy"), scored.dataset if scored else None),
    ]
    if job.scoring.scorer or not planned.elsewhere:
        parts.append(("datasets", planned.data.key("performance"), data))
    if not planned.elsewhere:
        parts.append(("engines", planned.engine_key, job.engine))
    for group, key, factory in parts:
        if factory and (call := _own_call(group, factory)):
            question = {"imports": call, "path": import_path(job.suite)}
            title = f"importing {call[0]} {call[1]}"
            kind, message, *_ = _run_check(json.dumps(question, sort_keys=True), title)
            if message:
                yield ERROR_CLASSES.get(kind, EnvironmentFault)(f"{planned.place(key)}: {message}")


def _own_call(group: registry.Group, factory: Factory) -> tuple[str, str, Mapping[str, Any]] | None:
    if registry.name_of(group, factory.target) != factory.target:
        return None
    return group[:-1], factory.target, factory.options


def library_trouble(use: str) -> str:
    """Return the error that a registered engine's `check_library` raises, or ""."""
    factory = registry.registered("engines")[use].value
    if not hasattr(registry.resolve(factory), "check_library"):
        return ""
    return _run_check(json.dumps({"target": factory, "given": None}))[1]


@lru_cache(maxsize=256)
def _run_check(question: str, title: str = "checking the engine's library") -> tuple[str, ...]:
    """Run a check, given as JSON, in a new process; return (error class, message, bad options)."""
    command = [sys.executable, "-m", "pytest_mlperf.cli.doctor.requirements"]
    try:
        done = run_captured(command, IMPORT_TIMEOUT_SECONDS, input=question)
    except subprocess.TimeoutExpired:
        return "", f"{title} takes longer than {IMPORT_TIMEOUT_SECONDS:.0f} s"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return "", f"{title} failed: {last}"
    return tuple(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Run the check that stdin describes as JSON; print the error as JSON."""
    question = json.load(sys.stdin)
    import_as_parent(question.get("path", ()))
    try:
        if "imports" in question:
            registry.imported(*question["imports"])
        elif question["given"] is None:
            registry.resolve(question["target"]).check_library()
        else:
            built = registry.resolve(question["target"])(**question["given"])
            built.require()
            getattr(built, "reach", lambda: None)()
        answer = ["", ""]
    except MlperfError as error:
        answer = [type(error).__name__, str(error), *error.options]
    print(json.dumps(answer))


IMPORT = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
        found = ""
    except BaseException as error:
        found = f"{type(error).__name__}: {error}".splitlines()[0]
    print(f"imported {name}={found}", flush=True)
"""


def import_failures(modules: Sequence[str]) -> dict[str, str]:
    """Import modules in a fresh process; return import errors by module.

    If a module crashes the process, the remaining modules are imported in another one.
    """
    failures: dict[str, str] = {}
    left = list(modules)
    while left:
        try:
            done = run_captured([sys.executable, "-c", IMPORT, *left], IMPORT_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            return failures | dict.fromkeys(
                left, f"not imported within {IMPORT_TIMEOUT_SECONDS:.0f} s"
            )
        answers = dict(re.findall(r"^imported (\w+)=(.*)$", done.stdout, re.MULTILINE))
        failures |= {name: reason for name, reason in answers.items() if reason}
        left = [name for name in left if name not in answers]
        if left:
            failures[left.pop(0)] = f"its import ends the process with exit code {done.returncode}"
    return failures


def missing_library(group: registry.Group, use: str, failures: Failures) -> tuple[str, str] | None:
    """Return (problem with an extension's first missing library, remedy), or None."""
    for library in declared_libraries(group, use):
        trouble = ""
        if not is_here(library):
            trouble = "is not installed"
        elif library in failures:
            trouble = f"cannot be imported: {failures[library]}"
        if trouble:
            return f"needs {library}, which {trouble}", install_command(group, use, [library])
    return None


ANSWER_SHAPES: Mapping[str, events.Fields] = {
    "python": events.OF_WORKER["python"],
    "importing": {"library": events.is_text},
    "answer": {
        "lacking": events.by_name(events.is_text),
        "error": lambda value: events.list_of(events.is_text)(value) and len(value) >= 2,
    },
    "error": events.ERROR,
}
"""Shapes of its messages: progress, then the missing libraries and an engine's error as class,
sentence and wrong options."""


OtherPython = tuple[str, list[MlperfError]]
"""Another Python's versions as text, and the errors of a case in that Python."""


def inspect_python(planned: Planned, job: Job, runs_dir: Path) -> OtherPython:
    """Ask the Python of a case's engine for its versions, missing libraries and errors.

    The case must have its Python, model and valid options. That Python must have access to
    `runs_dir`.
    """
    libraries = [*declared_libraries("engines", planned.engine.use)]
    libraries += declared_libraries("datasets", planned.data.source("performance").use)
    calls = (_own_call("engines", job.engine), _own_call("datasets", job.dataset))
    question = {
        "libraries": list(dict.fromkeys(libraries)),
        "imports": [call for call in calls if call],
        "engine": _question(job),
    }
    try:
        answers = _asked_there(job, runs_dir, question)
    except MlperfError as error:
        return "", [error]
    about = ""
    if python := next((answer for answer in answers if answer["event"] == "python"), None):
        versions = [f"{name} {version}" for name, version in python["versions"].items()]
        about = ", ".join([f"{planned.elsewhere}: Python {python['version']}", *versions])
    return about, list(_trouble(planned, answers))


def _trouble(planned: Planned, answers: Sequence[Mapping[str, Any]]) -> Iterator[MlperfError]:
    last: Mapping[str, Any] = answers[-1] if answers else {"event": ""}
    title = planned.elsewhere
    if last["event"] == "error":
        yield EnvironmentFault(str(last["message"]))
    elif last["event"] == "importing":
        yield EnvironmentFault(f"{title}: the import of {last['library']} ends the process")
    elif last["event"] != "answer":
        yield EnvironmentFault(
            f"{title}: does not start, or its stdout does not reach pytest-mlperf"
        )
    else:
        python = planned.engine.python
        for library, reason in last["lacking"].items():
            helps = "install it there, or use an image that has it"
            if python is not None:
                helps = f"{python} -m pip install {distribution(library)}"
            state = f"cannot be imported: {reason}" if reason else f"is not installed: {helps}"
            yield EnvironmentFault(f"{title}: needs {library}, which {state}")
        if error := _error(planned, last["error"], f" (in {title})"):
            yield error


def _asked_there(job: Job, runs_dir: Path, question: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="doctor-", dir=runs_dir.resolve()))
    except OSError as error:
        raise EnvironmentFault(f"{runs_dir} cannot be written: {error.strerror}") from None
    assert job.elsewhere is not None
    try:
        with build_for(job.elsewhere, folder, job.suite) as build:
            return _answers(build, folder, question)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _answers(build: Build, folder: Path, question: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    file = folder / "question.json"
    path = {"import_path": build.last, "import_first": build.first, "import_not": build.never}
    file.write_text(json.dumps({"question": question, "environment": {}, **path}), "utf-8")
    environment = {key: value for key, value in os.environ.items() if key not in THIS_PYTHON}
    limit_s = CONTAINER_TIMEOUT_SECONDS
    try:
        done = run_captured(build.command(file), limit_s, stdin=subprocess.DEVNULL, env=environment)
    except subprocess.TimeoutExpired:
        raise EnvironmentFault(f"{build.title}: no answer within {limit_s:.0f} s") from None
    except OSError as error:
        raise EnvironmentFault(f"{build.title} cannot be started: {error.strerror}") from None
    try:
        answers = [
            events.event_of(line, ANSWER_SHAPES) for line in done.stdout.encode().splitlines()
        ]
    except events.NoEventError as error:
        printed = broken(repr(done.stdout[:80]))
        raise EnvironmentFault(
            f"{build.title} does not run Python: it printed {printed} ({error})"
        ) from None
    if not answers:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise EnvironmentFault(f"{build.title} does not start: {last}")
    return list(answers)


if __name__ == "__main__":
    main()
