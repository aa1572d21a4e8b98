"""A watched scorer scores as it always did; beside it lies a digest of each output."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_mlperf.core.measurement import digest
from pytest_mlperf.run.score import Outputs
from pytest_mlperf.scorers.top1 import Top1Scorer

OUTPUTS = [number.to_bytes(8, "little") for number in (1, 2, 3, 3)]


class Read(Sequence[bytes]):
    """Outputs that count how often each is read."""

    def __init__(self) -> None:
        self.times = [0] * len(OUTPUTS)

    def __len__(self) -> int:
        return len(OUTPUTS)

    def __getitem__(self, position: int) -> bytes:  # type: ignore[override]
        output = OUTPUTS[position]
        self.times[position] += 1
        return output


def test_scores_are_the_scorers_own_and_an_output_that_was_scored_is_not_read_again() -> None:
    scorer, outputs = Top1Scorer(model=None, dtype="int64"), Outputs(OUTPUTS)

    assert scorer.score(outputs, [1, 2, 3, 4]) == scorer.score(OUTPUTS, [1, 2, 3, 4])
    assert outputs.digests() == [digest(output) for output in OUTPUTS]

    read = Read()
    watched = Outputs(read)
    assert list(watched) == OUTPUTS

    assert watched.digests() == [digest(output) for output in OUTPUTS]
    assert read.times == [1, 1, 1, 1]


def test_outputs_that_are_left_out_are_read_at_the_end() -> None:
    for position in (0, 3, -1, slice(1, 3), slice(None, None, -1)):
        watched = Outputs(OUTPUTS)
        assert watched[position] == OUTPUTS[position]
        assert (len(watched), watched.digests()) == (4, [digest(output) for output in OUTPUTS])
