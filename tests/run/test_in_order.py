"""A data set in order is asked in its order while speed is measured, and by index for accuracy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_mlperf.builtin.synthetic import SyntheticDataset
from pytest_mlperf.core.extension import Dataset, Engine, Sink
from pytest_mlperf.run.worker._delivery import PerformanceSink
from pytest_mlperf.run.worker._handicap import InOrder
from pytest_mlperf.testing import RecordingSink
from tests.run.harness import RunningWorker, settings, spec
from tests.run.test_sink import Received, give_up

SAMPLES = 50


class Ordered(SyntheticDataset):
    in_order = True


class Remembers(Engine):
    """Answers with the index, and keeps in its log which samples it was given, run by run."""

    def __init__(self, dataset: Dataset, model: str | None, precision: str) -> None:
        self.indices: list[int] = []

    def unload_samples(self, indices: Sequence[int]) -> None:
        print("indices", json.dumps(self.indices), flush=True)
        self.indices = []

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        self.indices += indices
        if getattr(sink, "counts_tokens", False):  # the test completes these
            return
        outputs = [b"%d" % index for index in indices]
        sink.done(ids, outputs if sink.wants_output else None)


def test_samples_go_round_in_ascending_order() -> None:
    engine, sink = Remembers(Ordered(samples=9), None, ""), RecordingSink(7, wants_output=False)
    ordered = InOrder(engine)
    ordered.load_samples([5, 2, 7])
    ordered.submit([1, 2], [7, 7], sink)
    ordered.submit([3, 4, 5, 6, 7], [2, 2, 2, 2, 2], sink)

    assert engine.indices == [2, 5, 7, 2, 5, 7, 2]
    assert sink.ids == [1, 2, 3, 4, 5, 6, 7]

    timed = PerformanceSink(give_up, Received().port)
    timed.counts_tokens = True
    timed.expect([8, 9])
    timed.answer_tokens.record_indices([8, 9], [2, 2])  # what LoadGen draws
    ordered.submit([8, 9], [2, 2], timed)
    timed.done([8, 9], None, [3, 4])
    assert timed.answer_tokens.by_index == {5: [3], 7: [4]}


@pytest.mark.process
@pytest.mark.parametrize("scenario", ["Offline", pytest.param("Server", marks=pytest.mark.nightly)])
def test_loadgens_draw_does_not_matter_for_speed_and_does_for_accuracy(
    tmp_path: Path, scenario: str
) -> None:
    """The accuracy log has each sample's own answer under LoadGen's index."""
    module = "tests.run.test_in_order:"
    case = spec(
        tmp_path,
        engine=f"{module}Remembers",
        dataset=f"{module}Ordered",
        dataset_options={"samples": SAMPLES},
        settings=settings(scenario, performance_samples=SAMPLES),
    )
    with RunningWorker(case) as worker:
        worker.wait_for("ready")
        worker.send(command="accuracy", block=0, indices=list(range(SAMPLES)))
        folder = Path(worker.wait_for("finished")["folder"])
        worker.wait_for("ready")
    lines = (tmp_path / "engine.log").read_text("utf-8").splitlines()
    indices_of_runs = [
        json.loads(line.partition(" ")[2]) for line in lines if line.startswith("indices")
    ]
    log = json.loads((folder / "mlperf_log_accuracy.json").read_text("utf-8"))

    measured = indices_of_runs[-2]
    assert measured == [number % SAMPLES for number in range(len(measured))]
    assert len(measured) >= 700
    answers = {row["qsl_idx"]: int(bytes.fromhex(row["data"])) for row in log}
    assert answers == dict(enumerate(range(SAMPLES)))
