"""What an engine that runs in another Python, or in a container, finds there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mlperf import registry
from pytest_mlperf.cli.libraries import needs
from pytest_mlperf.core.errors import EnvironmentFault, MlperfError, SuiteError, UnavailableError
from pytest_mlperf.core.foreign_text import broken
from pytest_mlperf.run.builds import Build, build_for
from pytest_mlperf.run.events import (
    ERROR,
    OF_WORKER,
    Fields,
    NoEventError,
    by_name,
    each,
    event_of,
    is_text,
)
from pytest_mlperf.run.supervisor import THIS_PYTHON
from pytest_mlperf.suite.libraries import distribution
from pytest_mlperf.suite.plan import Planned
from pytest_mlperf.suite.preflight import engine_place

LIMIT_S = 300.0
"""A container may have to start, and a large library to be imported for the first time."""

KINDS = {kind.__name__: kind for kind in (SuiteError, UnavailableError)}

ANSWERS: Mapping[str, Fields] = {
    "python": OF_WORKER["python"],
    "importing": {"library": is_text},
    "answer": {
        "lacking": by_name(is_text),
        "error": lambda value: each(is_text)(value) and len(value) == 2,
    },
    "error": ERROR,
}
"""What it sends: how far it is, in the end what is lacking, and an engine's error as two texts."""


@dataclass(frozen=True, kw_only=True)
class There:
    """Another Python, as it answered.

    Attributes:
        about: Its version and what every worker imports, in words; "" where it does not start.
        trouble: Why a case cannot run there, each as an error to tell.
    """

    about: str
    trouble: tuple[MlperfError, ...] = ()


def asking(runs_dir: Path) -> Callable[[Planned], There]:
    """Return what asks where a case runs; once for all cases of an engine entry."""
    known: dict[tuple[Path, int], There] = {}

    def ask(planned: Planned) -> There:
        key = (planned.path, planned.suite.engines.index(planned.engine))
        if key not in known:
            known[key] = look_there(planned, runs_dir)
        return known[key]

    return ask


def look_there(planned: Planned, runs_dir: Path) -> There:
    """Ask the Python in which a case's engine runs what it lacks.

    Call it for a case whose Python is here, that has its model and whose options are right.

    Args:
        planned: The case; its engine entry names another Python.
        runs_dir: Folder of the runs, which that Python must be able to read.
    """
    libraries = [*needs("engines", planned.engine.use)]
    libraries += needs("datasets", planned.suite.workload.dataset.use)
    try:
        answers = _asked(planned, runs_dir, list(dict.fromkeys(libraries)))
    except MlperfError as error:
        return There(about="", trouble=(error,))
    about = next((_about(a, planned.elsewhere) for a in answers if a["event"] == "python"), "")
    return There(about=about, trouble=tuple(_trouble(planned, answers)))


def _about(python: Mapping[str, Any], title: str) -> str:
    versions = [f"{name} {version}" for name, version in python["versions"].items()]
    return ", ".join([f"{title}: Python {python['version']}", *versions])


def _trouble(planned: Planned, answers: Sequence[Mapping[str, Any]]) -> Iterator[MlperfError]:
    """Yield what answers say is lacking; of a Python that ended too early, where it was."""
    last: Mapping[str, Any] = answers[-1] if answers else {"event": ""}
    title = planned.elsewhere
    if last["event"] == "error":
        yield EnvironmentFault(str(last["message"]))
    elif last["event"] == "importing":
        yield EnvironmentFault(f"{title}: importing {last['library']} ends the process")
    elif last["event"] != "answer":
        yield EnvironmentFault(f"{title}: it does not start, or does not pass on stdout")
    else:
        for library, why in last["lacking"].items():
            what = (
                f"breaks: {why}" if why else f"is not installed there: {_advice(planned, library)}"
            )
            yield EnvironmentFault(f"{title}: needs {library}, which {what}")
        kind, message = last["error"]
        if message:
            place = engine_place(planned, message)
            yield KINDS.get(kind, EnvironmentFault)(f"{place}: {message} (in {title})")


def _advice(planned: Planned, library: str) -> str:
    """Return how a library comes to where a case runs."""
    engine = planned.engine
    if engine.python is None:
        return "start an image or environment that has it, or install it there"
    return f"{engine.python} -m pip install {distribution(library)}"


def _asked(planned: Planned, runs_dir: Path, libraries: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return what the other Python answers, event by event.

    Raises:
        MlperfError: It is not here, or does not answer.
    """
    engine = registry.registered("engines").get(planned.engine.use)
    given = {
        **planned.factories[0].options,
        "model": planned.model,
        "precision": planned.engine.precision,
        "dataset": None,
    }
    asks = engine is not None and hasattr(registry.resolve(engine.value), "require")
    question = {
        "libraries": libraries,
        "engine": {"target": engine.value, "given": given} if engine and asks else None,
    }
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="doctor-", dir=runs_dir.resolve()))
    except OSError as error:
        raise EnvironmentFault(f"{runs_dir} cannot be written: {error.strerror}") from None
    try:
        with build_for(planned, folder, None) as build:
            assert build is not None
            return _answers(build, folder, question)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _answers(build: Build, folder: Path, question: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    file = folder / "question.json"
    path = {"import_path": build.last, "import_first": build.first, "import_not": build.never}
    file.write_text(json.dumps({"question": question, "environment": {}, **path}), "utf-8")
    environment = {key: value for key, value in os.environ.items() if key not in THIS_PYTHON}
    try:
        done = subprocess.run(
            build.command(file),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentFault(f"{build.title} does not answer within {LIMIT_S:.0f} s") from None
    except OSError as error:
        raise EnvironmentFault(f"{build.title} cannot be started: {error.strerror}") from None
    try:
        events: list[Mapping[str, Any]]
        events = [event_of(line, ANSWERS) for line in done.stdout.encode().splitlines()]
    except NoEventError as error:
        printed = broken(repr(done.stdout[:80]))
        raise EnvironmentFault(f"{build.title} is no Python: {printed} ({error})") from None
    if not events:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise EnvironmentFault(f"{build.title} does not start: {last}")
    return events
