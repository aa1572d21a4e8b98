"""The checkpoint that a case's `build` makes: found among those that are there, or made now."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import MlperfError, RunError
from pytest_mlperf.run import lease
from pytest_mlperf.run.checkpoint_about import QUIET, about_builder
from pytest_mlperf.run.checkpoint_source import WEIGHTS, Memory, digests, hash_of, model_files
from pytest_mlperf.run.checkpoint_store import SCHEMA, SHARED, Built, CheckpointStore
from pytest_mlperf.run.child import Child
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.run.events import Fields, by_name, is_count, is_text
from pytest_mlperf.run.protocol import Event
from pytest_mlperf.suite.build_step import Step, step_of
from pytest_mlperf.suite.elsewhere import Elsewhere
from pytest_mlperf.suite.plan import Planned

KEY_DIGITS = 32
SHOWN_DIGITS = 16
"""Of digests in the fingerprint, as of those that engines tell."""

PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".py")
"""Endings of files that can carry code; no checkpoint here has one."""

PROMPTS: Fields = {"digest": is_text, "samples": is_count}
"""What `calibration` answers."""

BUILT: Fields = {"facts": by_name(is_text), "weights_sha256": is_text}
"""What `checkpoint_child.build` answers."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A quantised model, ready to be loaded.

    Attributes:
        folder: What engines load.
        facts: What the fingerprint says of how it was made.
        weights_sha256: Of its safetensors files.
    """

    folder: Path
    facts: Mapping[str, str]
    weights_sha256: str

    def require(self, engine: Mapping[str, Any]) -> None:
        """Make sure that an engine loaded what was built, where it says what it loaded.

        Raises:
            RunError: It loaded other weights.
        """
        found = str(engine.get("weights_sha256", ""))
        if found and not self.weights_sha256.startswith(found):
            raise RunError(
                "build",
                f"{self.folder}: its weights are not those that were built (SHA-256 {found}, built "
                f"{self.weights_sha256[: len(found)]}): remove {self.folder.parent}, so that they "
                "are built again",
            )


def builds_folder(runs: Path) -> Path:
    """Return where checkpoints are kept, from the folder of a session's runs.

    That which PYTEST_MLPERF_BUILDS names, else `builds` in the folder of all that is measured.
    """
    if shared := os.environ.get(SHARED):
        return Path(shared).expanduser().absolute()
    return (runs.parent.parent if runs.parent.name == "runs" else runs.parent) / "builds"


def checkpoint_for(
    planned: Planned, conditions: Conditions, folder: Path, show: Callable[[str], None]
) -> Checkpoint | None:
    """Return the checkpoint of a case, made now if need be; None where its entry builds none.

    Args:
        planned: The case.
        conditions: What the session's runs share.
        folder: Existing folder of this run: logs go there.
        show: Takes a line of progress, many times.

    Raises:
        RunError: It cannot be made; the message names the log.
        UnavailableError: Model, data or the builder's Python is not here.
        SuiteError: A variable in an option is not set.
    """
    step = step_of(planned)
    if step is None:
        return None
    return _Making(step, planned, conditions, folder, show).get()


def state_of(planned: Planned, runs_dir: Path) -> str:
    """Return whether a case's checkpoint is built, in words; "" where its entry builds none.

    Nothing is built, and no weights are read: what is not remembered counts as not built. Code of
    the user's own is not imported.

    Args:
        planned: The case; its model and its calibration data are here.
        runs_dir: The folder of all that is measured.
    """
    with contextlib.suppress(MlperfError, OSError):
        step = step_of(planned)
        if step is None or not step.registered:
            return ""
        store = CheckpointStore(builds_folder(runs_dir / "runs" / "any"))
        key = _memory(step, store, about_builder(step)).recall()
        if key and (built := store.find(key)):
            return f"{step.title}: built {built.provenance['built']}"
        return f"{step.title}: not built yet, the first run does"
    return ""


class _Making:
    """One checkpoint, from what the suite says to what engines load."""

    def __init__(
        self,
        step: Step,
        planned: Planned,
        conditions: Conditions,
        folder: Path,
        show: Callable[[str], None],
    ) -> None:
        self._step = step
        self._planned = planned
        self._conditions = conditions
        self._folder = folder
        self._show = show
        self._store = CheckpointStore(builds_folder(conditions.folder))
        self._prompts: Path | None = None
        self._calibration: dict[str, Any] = {}

    def get(self) -> Checkpoint:
        """Return it, made now if need be."""
        step, store = self._step, self._store
        about = about_builder(step)
        memory = _memory(step, store, about)
        known = memory.recall()
        if known and (built := store.find(known)):
            return _checkpoint(built)
        files = model_files(step.source)
        source = digests(files, self._show)
        self._calibrate()
        made_of = {
            **_decided(step, about),
            "source": source,
            "calibration": self._calibration.get("digest"),
        }
        key = hash_of(made_of)[:KEY_DIGITS]
        limit_s = self._conditions.lease_limit_s
        if (built := store.find(key)) is None:
            with store.alone(key, limit_s=limit_s, waiting=self._show):
                built = store.find(key) or self._make(key, about, source)
        memory.keep(key)
        return _checkpoint(built)

    def _calibrate(self) -> None:
        """Write the prompts that the builder looks at, where it looks at any."""
        wanted = self._step.calibration
        if wanted is None:
            return
        file = self._folder / "prompts.json"
        spec = {
            "source": str(self._step.source),
            "dataset": asdict(wanted.dataset),
            "count": wanted.count,
            "file": str(file),
        }
        done = self._run("calibration", "calibration", spec, PROMPTS)
        self._prompts = file
        samples = int(done["samples"])
        self._calibration = {"use": wanted.title, "samples": samples, "digest": done["digest"]}

    def _make(self, key: str, about: Event, source: Mapping[str, str]) -> Built:
        """Let the builder write; nothing else uses the accelerator meanwhile."""
        step, conditions = self._step, self._conditions
        machine, accelerator = conditions.machine, self._planned.case.accelerator
        limit_s, begun = conditions.lease_limit_s, time.monotonic()
        with (
            lease.hold(machine.leases(accelerator), limit_s=limit_s, waiting=self._show),
            self._store.making(key) as target,
        ):
            spec = {
                "target": step.target,
                "recipe": step.recipe,
                "options": dict(step.options),
                "source": str(step.source.resolve()),
                "folder": str(target.resolve()),
                "prompts": str(self._prompts.resolve()) if self._prompts else "",
                "beside": [name for name in source if not _is_builders_own(name)],
                "refused": PICKLES,
            }
            done = self._run("checkpoint_child", "build", spec, BUILT, there=step.python)
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
        script: str,
        task: str,
        spec: Mapping[str, Any],
        answer: Fields,
        *,
        there: Elsewhere | None = None,
    ) -> Event:
        machine, accelerator = self._conditions.machine, self._planned.case.accelerator
        return Child(
            title=f"building {self._step.title}",
            folder=self._folder,
            script=f"run/{script}",
            spec={"task": task, **spec},
            answer=answer,
            patience=self._conditions.patience,
            show=self._show,
            python=there.command if there else None,
            environment={**machine.environment(accelerator), **QUIET},
        ).run()


def _is_builders_own(name: str) -> bool:
    """Whether a builder writes this file itself; a tokenizer's files, say, are copied."""
    return name == "config.json" or name.endswith((WEIGHTS, f"{WEIGHTS}.index.json"))


def _checkpoint(built: Built) -> Checkpoint:
    made = built.provenance
    facts = {
        "use": made["use"],
        "recipe": made["recipe"],
        "options": json.dumps(made["options"], sort_keys=True),
        "source_sha256": hash_of(made["source"])[:SHOWN_DIGITS],
        "code": made["code"][:SHOWN_DIGITS],
        **made["versions"],
        **made["facts"],
    }
    if calibration := made["calibration"]:
        facts["calibration"] = f"{calibration['use']}, {calibration['samples']:,} samples"
        facts["calibration_digest"] = calibration["digest"][:SHOWN_DIGITS]
    return Checkpoint(
        folder=built.folder,
        facts={f"build.{name}": str(value) for name, value in sorted(facts.items())},
        weights_sha256=str(made["weights_sha256"]),
    )


def _decided(step: Step, about: Event) -> dict[str, Any]:
    """Return what decides the result beside the content of files."""
    return {
        "schema": SCHEMA,
        "use": step.use,
        "recipe": step.recipe,
        "options": dict(step.options),
        "versions": dict(about["versions"]),
        "code": str(about["code"]),
    }


def _memory(step: Step, store: CheckpointStore, about: Event) -> Memory:
    """Return what may know the build without reading anything.

    Of calibration data that code of the user's own makes nothing is known beforehand.
    """
    wanted, files = step.calibration, model_files(step.source)
    calibration = [asdict(wanted.dataset), wanted.count] if wanted else None
    if wanted and (path := wanted.dataset.options.get("path")):
        files.append(Path(path))
    sure = wanted is None or wanted.registered
    decided = {**_decided(step, about), "calibration": calibration}
    return Memory(store.folder if sure else None, decided, files)
