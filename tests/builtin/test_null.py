"""The null engine answers every sample with its index, in batches, from inline or its threads."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

from pytest_mlperf.builtin.null import NullEngine
from pytest_mlperf.builtin.synthetic import SyntheticDataset
from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.testing import RecordingSink, check_engine
from tests.refusals import unrefused


def engine(**options: Any) -> NullEngine:
    return NullEngine(dataset=SyntheticDataset(), **options)


def test_every_sample_is_answered_once_with_its_index_in_batches() -> None:
    ids, indices = list(range(500, 600)), list(range(100))
    for threads, batch_size in itertools.product((0, 1, 3), (1, 7, 1000)):
        sink = RecordingSink(ids)
        with engine(batch_size=batch_size, threads=threads) as null:
            null.submit(ids, indices, sink)
            sink.wait()
        assert sink.outputs == {500 + index: index.to_bytes(8, "little") for index in indices}
        assert sorted(sink.ids) == ids
        assert max(map(len, sink.batches)) == min(batch_size, len(ids))
        assert (threading.get_ident() in sink.threads) is (threads == 0)


def test_outputs_and_tokens_are_made_only_on_request() -> None:
    sink = RecordingSink([1, 2], wants_output=False, counts_tokens=False)
    engine(batch_size=2).submit([1, 2], [0, 1], sink)
    sink.wait()
    assert (sink.batches, sink.outputs) == ([[1, 2]], {})
    for wants_output in (True, False):
        sink = RecordingSink([1, 2], wants_output=wants_output, times_tokens=True)
        engine(batch_size=2, tokens=5).submit([1, 2], [0, 1], sink)
        sink.wait()
        assert sink.reports(1) == sink.reports(2) == ["first", "done"]
        assert sink.n_tokens == {1: 5, 2: 5}


def test_work_takes_at_least_its_time_per_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        now_s = 5.0

        def perf_counter(self) -> float:
            self.now_s += 1e-7
            return self.now_s

        def sleep(self, seconds: float) -> None:
            self.now_s += seconds

    for latency_s in (1e-4, 2e-3):
        clock = Clock()
        monkeypatch.setattr("pytest_mlperf.builtin.null.time", clock)
        engine(latency_s=latency_s, batch_size=4).submit(range(10), range(10), RecordingSink(10))
        assert clock.now_s - 5.0 == pytest.approx(10 * latency_s, rel=0.02)


def test_what_decides_its_speed_is_described_and_a_value_out_of_range_refused() -> None:
    options = {"latency_s": 0.5, "batch_size": 2, "threads": 3, "tokens": 4}
    texts = {name: str(value) for name, value in options.items()}
    assert engine(**options).describe() == {"engine": "null", **texts}
    wrong = {"batch_size": 0, "latency_s": -0.1, "threads": -1, "tokens": -1}
    rows = [({name: value}, f"{name}={value}") for name, value in wrong.items()]
    assert unrefused(lambda options: engine(**options), SuiteError, rows) == []


@pytest.mark.process
def test_it_keeps_the_contract() -> None:
    for options in ({}, {"threads": 2, "batch_size": 5}):
        assert len(check_engine(NullEngine, SyntheticDataset(), options=options)) == 24
