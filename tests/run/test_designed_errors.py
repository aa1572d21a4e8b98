"""An error of our own is one sentence; one of an engine or library keeps its log and traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.bench.bench import broken
from pytest_mlperf.core.case import Case, Kind, Scenario
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.job import Expected
from pytest_mlperf.core.verdict import Verdict
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.run.child.process import DeliberateError, Patience, WorkerProcess
from pytest_mlperf.run.child.protocol import ReplicaSpec, WorkerSpec
from tests.run.engines_in_replicas import WORD, OneFails
from tests.run.harness import FAILING, ROOT, spec

pytestmark = pytest.mark.process

CASE = Case(
    workload="first", scenario=Scenario.OFFLINE, engine="null", precision="fp32", accelerator="cpu"
)


@pytest.fixture(autouse=True)
def importable_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def verdict(worker_spec: WorkerSpec) -> tuple[RunError, Verdict]:
    """Return the error of a worker and the verdict that a test makes of it."""
    with (
        pytest.raises(RunError) as raised,
        WorkerProcess(worker_spec, Patience(), lambda _: None) as worker,
    ):
        worker.wait_for("ready")
    return raised.value, broken(CASE, Kind.PERFORMANCE, raised.value, str)


def test_an_error_of_our_own_is_one_sentence_without_log_and_traceback(tmp_path: Path) -> None:
    """A layer is not named twice, and what happens in a run says when."""
    model = tmp_path / "m.onnx"
    model.write_bytes(b"no model")
    onnx = {
        "engine": "pytest_mlperf.adapters.engines.onnxruntime:OnnxRuntimeEngine",
        "options": {"task": "anwser"},
        "model": str(model),
        "precision": "fp32",
    }
    # The engine does not exist: who loads it first says so.
    other_data = {
        "engine": "no.such:Engine",
        "dataset_options": {"samples": 32},
        "expected": Expected(samples=50_000, whose="MLPerf's resnet50"),
    }
    cases: list[tuple[dict[str, Any], str]] = [
        (
            other_data,
            "dataset: the data set has 32 samples, MLPerf's resnet50 has 50,000: it is a different "
            "one, or incomplete; correct its path, or set count in the quick profile to use a part "
            'of it, or rename the workload and add twin_of = "..."',
        ),
        (
            onnx,
            "engine onnxruntime: task = 'anwser' is not one of classify, answer, detect, yolo, "
            "segment, tensor",
        ),
        (
            {"engine": f"{FAILING}CompletesUnknown"},
            "engine: done() was given id 1, which is not outstanding: it was never issued, or it "
            "was completed before (during the end of a run)",
        ),
    ]
    for number, (changes, headline) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        error, error_verdict = verdict(spec(folder, **changes))
        assert isinstance(error, DeliberateError)
        assert (error_verdict.headline, error_verdict.notes) == (headline, ())
        assert error_verdict.logs.file == str(folder / "engine.log")
    assert "Traceback" in (tmp_path / "0" / "engine.log").read_text("utf-8")


def test_an_exception_of_an_engine_or_the_end_of_a_replica_keeps_the_end_of_its_log(
    tmp_path: Path,
) -> None:
    error, error_verdict = verdict(spec(tmp_path, engine=f"{FAILING}RaisesOnEnter"))
    assert not isinstance(error, DeliberateError)
    assert sentence(error_verdict.headline).startswith(
        "engine: RuntimeError: example failure (in __enter__, "
    )
    assert sentence(error_verdict.headline).endswith(" (during load)")
    assert "Traceback (most recent call last):" in error_verdict.logs.tail
    assert error_verdict.logs.tail[-1] == "RuntimeError: example failure"

    three = [ReplicaSpec(name=f"replica {number} (GPU {number + 4})") for number in range(3)]
    engine = f"{OneFails.__module__}:OneFails"
    replica_spec = spec(tmp_path, replicas=three, engine=engine, options={"how": "dies"})
    _, error_verdict = verdict(replica_spec)
    assert error_verdict.headline == (
        "engine: replica 1 (GPU 5) was killed by SIGKILL; if nobody killed it, the machine ran out "
        f"of memory (see dmesg); replica-1.log ends: {WORD} (during the performance run)"
    )
    assert error_verdict.logs.tail[-2:] == ("and before", WORD)
    assert error_verdict.logs.file == str(tmp_path / "replica-1.log")
