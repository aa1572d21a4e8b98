"""Find the quantised checkpoint of a case's `build`, or build it."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import MlperfError, RunError
from pytest_mlperf.core.job import CheckpointBuild, MeasuredCase, PythonEnvironment
from pytest_mlperf.processes import log_tail
from pytest_mlperf.run.checkpoints import _store
from pytest_mlperf.run.checkpoints._store import Checkpoint
from pytest_mlperf.run.child.events import Fields, by_name, is_count, is_text, list_of
from pytest_mlperf.run.child.process import Child, Patience
from pytest_mlperf.run.child.protocol import Event
from pytest_mlperf.run.conditions import Conditions, placed

__all__ = ["PICKLES", "Checkpoint", "about_builder", "builds_folder", "checkpoint_for", "state_of"]

BUILD_SCRIPT = "run/checkpoints/child"

KEY_DIGITS = 32
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".py")
"""Suffixes of files that can carry code, which no checkpoint may contain."""

CALIBRATION_SHAPE: Fields = {"digest": is_text, "samples": is_count}
BUILT: Fields = {"facts": by_name(is_text), "weights_sha256": is_text}


def builds_folder(runs: Path) -> Path:
    """Return the folder of checkpoints: PYTEST_MLPERF_BUILDS, else `builds` next to all runs."""
    if shared := os.environ.get(_store.SHARED):
        return Path(shared).expanduser().absolute()
    return (runs.parent.parent if runs.parent.name == "runs" else runs.parent) / "builds"


def checkpoint_for(
    job: MeasuredCase, conditions: Conditions, folder: Path, show: Callable[[str], None]
) -> Checkpoint | None:
    """Return a case's checkpoint; build it if absent. None if the engine entry has no `build`."""
    if job.build is None:
        return None
    return _Making(job.build, job.accelerator, conditions, folder, show).get()


def state_of(step: CheckpointBuild | None, runs_dir: Path) -> str:
    """Return text on whether a case's checkpoint is built; "" if the engine entry has no `build`.

    It reads no weights and runs no user code. A checkpoint whose key is not cached is "not built".
    """
    if step is None or not step.registered:
        return ""
    with contextlib.suppress(MlperfError, OSError):
        store = _store.CheckpointStore(builds_folder(runs_dir / "runs" / "any"))
        key = _key_cache(step, store, about_builder(step)).recall()
        if key and (built := store.find(key)):
            return f"{step.title}: built {built.provenance['built']}"
        return f"{step.title}: not built yet; the first run builds it"
    return ""


@dataclass
class _Making:
    step: CheckpointBuild
    accelerator: str
    conditions: Conditions
    folder: Path
    show: Callable[[str], None]

    def __post_init__(self) -> None:
        self._machine = self.conditions.machine
        self._store = _store.CheckpointStore(builds_folder(self.conditions.folder))
        self._prompts: Path | None = None
        self._calibration: dict[str, Any] = {}

    def get(self) -> Checkpoint:
        step, store = self.step, self._store
        about = about_builder(step)
        memory = _key_cache(step, store, about)
        remembered = memory.recall()
        if remembered and (built := store.find(remembered)):
            return built
        source = _store.digests(step.source, _store.model_files(step.source), self.show)
        self._calibrate()
        made_of = {
            **_decided(step, about),
            "source": source,
            "calibration": self._calibration.get("digest"),
        }
        key = _store.hash_of(made_of)[:KEY_DIGITS]
        limit_s = self.conditions.lease_limit_s
        if (built := store.find(key)) is None:
            with store.lock_checkpoint(key, limit_s=limit_s, waiting=self.show):
                built = store.find(key) or self._make(key, about, source)
        memory.keep(key)
        return built

    def _calibrate(self) -> None:
        calibration = self.step.calibration
        if calibration is None:
            return
        file = self.folder / "prompts.json"
        spec = {
            "source": str(self.step.source),
            "dataset": asdict(calibration.dataset),
            "count": calibration.count,
            "file": str(file),
        }
        done = self._run("calibration", spec, CALIBRATION_SHAPE)
        self._prompts = file
        samples = int(done["samples"])
        self._calibration = {"use": calibration.title, "samples": samples, "digest": done["digest"]}

    def _make(self, key: str, about: Event, source: Mapping[str, str]) -> Checkpoint:
        step, conditions = self.step, self.conditions
        # One build serves all power limits of its entry.
        conditions = replace(conditions, machine=replace(conditions.machine, limit_w=None))
        begun = time.monotonic()
        with (
            placed(self.accelerator, conditions, self.show) as placement,
            self._store.temporary_folder(key) as target,
        ):
            self._machine = placement.conditions.machine
            # A builder writes all files in a pipeline's folders.
            its_own = {*_store.CONFIGURATIONS, *(name for name in source if "/" in name)}
            weights = (_store.WEIGHTS_SUFFIX, f"{_store.WEIGHTS_SUFFIX}.index.json")
            spec = {
                "target": step.target,
                "recipe": step.recipe,
                "options": dict(step.options),
                "source": str(step.source.resolve()),
                "folder": str(target.resolve()),
                "prompts": str(self._prompts.resolve()) if self._prompts else "",
                "beside": [n for n in source if n not in its_own and not n.endswith(weights)],
                "refused": PICKLES,
            }
            done = self._run("build", spec, BUILT, there=step.python)
            return self._store.publish(
                key,
                target,
                {
                    **_decided(step, about),
                    "built": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
                    "seconds": round(time.monotonic() - begun, 1),
                    "options": dict(step.written),
                    "source": source,
                    "calibration": self._calibration or None,
                    "python": about["python"],
                    "facts": done["facts"],
                    "weights_sha256": done["weights_sha256"],
                },
            )

    def _run(
        self,
        task: str,
        spec: Mapping[str, Any],
        answer: Fields,
        *,
        there: PythonEnvironment | None = None,
    ) -> Event:
        return Child(
            title=f"building {self.step.title}",
            folder=self.folder,
            script=BUILD_SCRIPT,
            spec={"task": task, **spec},
            answer=answer,
            patience=self.conditions.patience,
            show=self.show,
            python=there,
            environment={**self._machine.environment(self.accelerator), **BUILDER_ENVIRONMENT},
            suite=self.step.suite,
        ).run()


def _decided(step: CheckpointBuild, about: Event) -> dict[str, Any]:
    return {
        "schema": _store.PROVENANCE_VERSION,
        "use": step.use,
        "recipe": step.recipe,
        "options": dict(step.options),
        "versions": dict(about["versions"]),
        "code": str(about["code"]),
    }


def _key_cache(step: CheckpointBuild, store: _store.CheckpointStore, about: Event) -> _store.Memory:
    """Return a cache of a checkpoint's hash key; it is off if user code makes calibration data."""
    prompts, files = step.calibration, _store.model_files(step.source)
    calibration = [asdict(prompts.dataset), prompts.count] if prompts else None
    if prompts and (path := prompts.dataset.options.get("path")):
        files.append(Path(path))
    sure = prompts is None or prompts.registered
    decided = {**_decided(step, about), "calibration": calibration}
    return _store.Memory(store.folder if sure else None, decided, files)


IMPORT_TIMEOUT_SECONDS = 300.0
BUILDER_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Variables of every builder: no downloads, and no forks of tokenizer threads."""

ABOUT: Fields = {
    "versions": by_name(is_text),
    "missing": list_of(is_text),
    "code": is_text,
    "python": is_text,
    "executable": is_text,
}

EXTRA = "torchao"
"""Library that an extra of this package installs; other builders need their own environment."""


def about_builder(step: CheckpointBuild) -> Event:
    """Return a builder's library versions and code digest; RunError if a library is missing."""
    about = _asked(step.target, step.python, step.suite)
    if missing := about["missing"]:
        names = " and ".join(missing)
        problem = "are not installed" if len(missing) > 1 else "is not installed"
        if step.python:
            problem += (
                f" in {step.python.title} ({step.python.key}): pip install {' '.join(missing)}"
            )
        elif EXTRA in missing:
            problem += "; try: pip install 'pytest-mlperf[quantization]'"
        else:
            problem += (
                "; install it, or name the Python of an environment that has it: "
                f'build = {{ use = "{step.use}", python = "..." }}'
            )
        raise RunError("build", f"builder {step.use} needs {names}, which {problem}")
    return about


@lru_cache(maxsize=64)
def _asked(target: str, python: PythonEnvironment | None, suite: Path) -> Event:
    with tempfile.TemporaryDirectory(prefix="pytest-mlperf-") as folder:
        child = Child(
            title=f"builder {target}",
            folder=Path(folder),
            script=BUILD_SCRIPT,
            spec={"task": "about", "target": target},
            answer=ABOUT,
            patience=Patience(progress_s=IMPORT_TIMEOUT_SECONDS, phase_s=IMPORT_TIMEOUT_SECONDS),
            show=lambda _: None,
            python=python,
            environment=BUILDER_ENVIRONMENT,
            suite=suite,
        )
        try:
            return child.run()
        except RunError as error:
            last = log_tail(error.log, 1)  # the log file is about to be removed
            more = f"; its log ends: {last[0]}" if last else ""
            raise RunError("build", f"{error}{more}") from None
