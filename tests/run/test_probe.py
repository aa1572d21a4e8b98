"""The rate that an engine is offered where the suite names none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Never

import pytest

from pytest_mlperf import Engine, Sink
from pytest_mlperf.run.worker.worker import LOADGEN_QPS, Driver, probe_offline


class Instant(Engine):
    """Answers without computing anything."""

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        sink.done(ids)


def refuse(error: BaseException) -> Never:
    raise error


@pytest.mark.slow
def test_an_engine_that_computes_nothing_is_asked_for_no_more_than_loadgen_completes() -> None:
    """Else LoadGen issues tens of millions of samples, and a run of one second lasts a minute."""
    assert probe_offline(Driver(Instant(), [0, 1], refuse)) == LOADGEN_QPS
