"""A tiny twin as its suite describes it: its engine's answers here, and its verdicts by pytest."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_mlperf import registry
from pytest_mlperf.core.extension import Engine, Scores
from pytest_mlperf.suite.plan import plan_suite
from pytest_mlperf.suite.resolve import dataset_of
from pytest_mlperf.testing import RecordingSink
from tests.jobs import job_of

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "suites" / "tiny"


def ask(engine: Engine, count: int, *, one_by_one: bool = False) -> list[bytes]:
    """Return an engine's answers to the first samples."""
    sink, indices = RecordingSink(count), range(count)
    with engine:
        engine.load_samples(indices)
        for part in [[index] for index in indices] if one_by_one else [list(indices)]:
            engine.submit(part, part, sink)
        sink.wait_for_end()
    assert sink.error is None
    return [sink.outputs[index] for index in indices]


class Twin:
    """A suite of suites/tiny, its data set, and what its trainer reached.

    Several suites may share a folder with a model.
    """

    def __init__(self, name: str, *, shared: str | None = None) -> None:
        self.name = shared or name
        self.file = TINY / f"{name}.mlperf.toml"
        self.planned = plan_suite(self.file)[0]
        self.precision = self.planned.case.precision
        self.training = json.loads((TINY / self.name / "training.json").read_text("utf-8"))
        job = job_of(self.planned)
        self.engine, source = job.engine, dataset_of(self.planned, "accuracy")
        self.dataset = registry.resolve(source.target)(**source.options)
        self.references = [self.dataset.reference(index) for index in range(len(self.dataset))]
        assert job.model is not None
        self.model = Path(job.model)

    def answers(self, model: Path | None = None) -> list[bytes]:
        """Return the engine's answer to each sample, with the suite's options."""
        given = {
            "dataset": self.dataset,
            "model": str(model or self.model),
            "precision": self.precision,
        }
        engine = registry.resolve(self.engine.target)(**given, **self.engine.options)
        return ask(engine, len(self.dataset))

    def score(self, answers: Sequence[bytes]) -> Scores:
        """Return the scores of these answers by the scorer of the suite."""
        assert self.planned.scorer is not None
        scorer = registry.resolve(self.planned.scorer.target)()
        scores: Scores = scorer.score(answers, self.references)
        return scores

    def gate(self, metric: str) -> float:
        """Return what the suite asks of a score at least."""
        bounds = self.planned.bounds(())
        assert bounds is not None
        low = bounds[metric].low
        assert low is not None
        return low

    def verdict(
        self, folder: Path, *, model: Path | None = None, scenario: str = "Offline"
    ) -> dict[str, Any]:
        """Run the suite's test of accuracy in a scenario against the committed baseline."""
        (folder / self.name).symlink_to(TINY / self.name)
        (folder / "baselines").mkdir()
        (folder / "baselines" / "accuracy").symlink_to(ROOT / "baselines" / "accuracy")
        text = self.file.read_text("utf-8")
        if model is not None:
            named = str(self.model.relative_to(TINY))
            assert named in text
            text = text.replace(named, str(model))
        (folder / self.file.name).write_text(text, "utf-8")
        environment = {**os.environ, "PYTEST_MLPERF_LEASES": str(folder / "leases")}
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", self.file.name, "--mlperf-json=results.json"),
                *("-p", "no:cacheprovider", "-p", "no:xdist"),
                "-omlperf_control=off",  # other tests compute beside it
                *("-m", f"mlperf(scenario='{scenario}')", "-k", "accuracy"),
            ],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        results = folder / "results.json"
        assert results.exists(), done.stdout + done.stderr
        (case,) = json.loads(results.read_text("utf-8"))["cases"]
        verdict: dict[str, Any] = case["verdict"]
        assert done.returncode == (verdict["outcome"] != "ok"), done.stdout + done.stderr
        return verdict


def load_tool(name: str) -> Any:
    """Return a module of the folder tools."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for what annotations name
    spec.loader.exec_module(module)
    return module
