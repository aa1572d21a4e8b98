"""A tiny twin as its suite describes it: its engine's answers here, and its verdicts by pytest."""

from __future__ import annotations

import importlib.util
import json
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf import registry
from pytest_mlperf.core.extension import Engine, Scores
from pytest_mlperf.suite.plan import plan_suite
from pytest_mlperf.suite.resolve import dataset_of
from pytest_mlperf.testing import RecordingSink
from tests.jobs import job_of

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "suites" / "tiny"
LANGUAGE = ("torch", "transformers", "rouge_score")
UNETS = ("torch", "transformers", "diffusers")
DETECTION = ("onnxruntime", "pycocotools", "PIL")


def missing(libraries: Sequence[str]) -> list[str]:
    """Return the libraries that are not installed."""
    return [name for name in libraries if importlib.util.find_spec(name) is None]


def twin_marks(*libraries: str) -> list[pytest.MarkDecorator]:
    """Return the marks of a module that runs a twin; it is skipped without these libraries."""
    lacking = missing(libraries)
    return [
        pytest.mark.process,
        pytest.mark.slow,
        pytest.mark.skipif(bool(lacking), reason=f"needs {', '.join(lacking)}"),
    ]


def ids_of(answer: bytes) -> list[int]:
    """Return the tokens of a language model's answer."""
    return list(struct.unpack(f"<{len(answer) // 8}q", answer))


def packed(ids: Sequence[int]) -> bytes:
    """Return tokens as a language model's answer."""
    return struct.pack(f"<{len(ids)}q", *ids)


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
    """A suite of suites/tiny, its data set, and the scores of its trainer.

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
        options = self.engine_options(self.dataset, **({"model": str(model)} if model else {}))
        return ask(registry.resolve(self.engine.target)(**options), len(self.dataset))

    def engine_options(self, dataset: Any, **options: Any) -> dict[str, Any]:
        """Return the arguments of the suite's engine, for another data set or other options."""
        shared = {"dataset": dataset, "model": str(self.model), "precision": self.precision}
        return {**shared, **self.engine.options, **options}

    def tokenizer(self) -> Any:
        """Return the tokenizer of the twin, by the library tokenizers."""
        library = pytest.importorskip("tokenizers")
        return library.Tokenizer.from_file(str(self.model / "tokenizer.json"))

    def texts(self, answers: Sequence[bytes]) -> list[str]:
        """Return answers as text."""
        decoded: list[str] = self.tokenizer().decode_batch([ids_of(answer) for answer in answers])
        return decoded

    def config(self) -> dict[str, Any]:
        """Return the config.json of the model."""
        config: dict[str, Any] = json.loads((self.model / "config.json").read_text("utf-8"))
        return config

    def score(self, answers: Sequence[bytes]) -> Scores:
        """Return the scores of these answers by the scorer of the suite."""
        assert self.planned.scorer is not None
        scorer = registry.resolve(self.planned.scorer.target)()
        scores: Scores = scorer.score(answers, self.references)
        return scores

    def gate(self, metric: str) -> float:
        """Return the suite's gate of a score."""
        bounds = self.planned.bounds(())
        assert bounds is not None
        low = bounds[metric].low
        assert low is not None
        return low

    def verdict(
        self,
        folder: Path,
        *,
        model: Path | None = None,
        scenario: str = "Offline",
        kind: str = "accuracy",
    ) -> dict[str, Any]:
        """Run a test of the suite in a scenario against the committed baselines."""
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
                *("-m", f"mlperf(scenario='{scenario}')", "-k", kind),
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
        assert done.returncode == case["failed"], done.stdout + done.stderr
        return verdict


def load_tool(name: str) -> Any:
    """Return a script of the folder twins, or of research."""
    places = (ROOT / folder / f"{name}.py" for folder in ("twins", "research"))
    tool_file = next(place for place in places if place.is_file())
    spec = importlib.util.spec_from_file_location(name, tool_file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for what annotations name
    spec.loader.exec_module(module)
    return module
