"""A window by a count of tokens that is made after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Sink
from pytest_mlperf.run.worker.closed_loop import SlotSink
from pytest_mlperf.run.worker.point_window import NOTE, Ended, recounted
from tests.run.test_curve import Answers, closed, refuse

METRICS = {
    "throughput": 2.0,
    "ttft_p90": 0.1,
    "tpot_p90": 0.5,
    "itl_p50": 0.4,
    "tokens_per_second": 20.0,
    "tokens_per_second_per_user": 3.0,
    "tokens_per_sample": 10.0,
    "tps_per_user": 2.0,
}


def ended(sample: int, tokens: int = 10, *, served: bool = True, counts: bool = True) -> Ended:
    return Ended(sample, served, counts, tokens, 2.0)


def test_rates_and_times_are_by_the_second_count() -> None:
    """TPOT is the time after the first piece by the tokens after it."""
    rows = [ended(1), ended(2), ended(3, counts=False), ended(4, served=False)]
    counts = {1: (10, 8), 2: (10, 4), 3: (10, 8), 4: (10, 8), 99: (7, 7)}
    metrics, note = recounted(METRICS, rows, counts, 2.0)
    assert metrics == {
        "throughput": 2.0,
        "ttft_p90": 0.1,
        "tokens_per_second": 15.0,
        "tokens_per_sample": 10.0,
        "tpot_p50": 0.25,
        "tpot_p90": 0.5,
        "tpot_p99": 0.5,
        "tps_per_user": 2.0,
    }
    assert note == ""

    for count, note in (
        (98, ""),
        (
            97,
            (
                "the reference tokenizer counts 97 tokens, the server 100 (-3.0%): the server "
                "counts end tokens or hidden tokens too, or uses another tokenizer"
            ),
        ),
        (
            103,
            (
                "the reference tokenizer counts 103 tokens, the server 100 (+3.0%): it is not "
                "the tokenizer of the served model"
            ),
        ),
    ):
        rows = [ended(1, tokens=100)]
        assert recounted(METRICS, rows, {1: (count, 9)}, 1.0)[1] == note

    turns = {**METRICS, "e2e_tps_per_user": 5.0}
    assert recounted(turns, [ended(1)], {1: (8, 4)}, 2.0)[0]["e2e_tps_per_user"] == 4.0
    assert "e2e_tps_per_user" not in recounted(turns, [ended(1)], {1: (0, 0)}, 2.0)[0]

    of_one_piece, _ = recounted(METRICS, [ended(1)], {1: (10, 0)}, 1.0)
    assert of_one_piece["tokens_per_second"] == 10
    assert not [name for name in of_one_piece if name.startswith(("tpot_", "tps_"))]

    with pytest.raises(RunError, match="the reference tokenizer did not count 1 of 2 answers"):
        recounted(METRICS, [ended(1), ended(2)], {1: (10, 9)}, 1.0)


class Counted(Answers):
    """Report twice the counted tokens, and count polls with requests in flight."""

    def __init__(self) -> None:
        super().__init__(tokens=5)
        self.answered: list[int] = []
        self.asked_under_way: list[int] = []

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        self.answered += ids
        super().submit(ids, indices, sink)

    def counted_again(self) -> Mapping[int, tuple[int, int]]:
        self.asked_under_way.append(self.under_way)
        answered, self.answered = self.answered, []
        return dict.fromkeys(answered, (10, 8))


def test_a_loop_asks_when_nothing_is_under_way() -> None:
    engine, sink = Counted(), SlotSink(refuse, tokens=True)
    log = closed(engine, sink, [1, 3])

    assert engine.asked_under_way == [0, 0, 0]
    for point in log["points"]:
        assert point["tokens"] == 10 * point["requests"] == sum(n for _, n, _ in point["parts"])
        assert point["metrics"]["tokens_per_sample"] == 10
        rate = point["metrics"]["throughput"] * 10
        assert point["metrics"]["tokens_per_second"] == pytest.approx(rate)
        assert "(+100.0%)" in point["notes"][NOTE]
