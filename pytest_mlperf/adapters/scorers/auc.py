"""Score click predictions as MLPerf's accuracy-dlrm.py does: the area under the ROC curve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_mlperf import RunError, Scores, SuiteError
from pytest_mlperf.adapters.scorers import ModelFreeScorer, require_outputs, scorer_error
from pytest_mlperf.adapters.scorers.leverage import Shares

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PIECE_PAIRS = 2**22
"""Pairs ranked at a time: what is made of them takes about 200 MB."""


@dataclass(frozen=True, kw_only=True)
class AucOptions:
    """How outputs are read.

    Attributes:
        interleaved: Whether the label follows each prediction in an output, as MLPerf's
            reference implementation writes it; such labels must equal the data set's.
    """

    interleaved: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.interleaved, bool):
            raise SuiteError(
                f"scorer auc: interleaved = {self.interleaved!r} is neither true nor false",
                option="interleaved",
            )


class AucScorer(ModelFreeScorer[AucOptions]):
    """Ranks the predictions of all user-item pairs of all samples together.

    AUC is the chance that a pair that was clicked has a higher prediction than one that was not;
    equal ones count half. It is counted in whole numbers, on predictions as float32 like in the
    reference, so it equals scikit-learn's roc_auc_score, which the reference calls.
    Source: recommendation/dlrm_v2/pytorch/tools/accuracy-dlrm.py of
    https://github.com/mlcommons/inference.

    With MLPerf's 89 million pairs it takes about 1 GB of memory: predictions and labels are kept,
    5 bytes per pair, and about 50 bytes for each clicked one, of which there are 3 in 100.
    """

    metrics = ("auc",)

    options: ClassVar[type] = AucOptions

    def score(self, outputs: Sequence[bytes], references: Sequence[Any]) -> Scores:
        """Score predictions against labels in one pass; return "auc", in per cent, of all pairs.

        Outputs are float32, little-endian; references are labels 0 or 1, shape (pairs,). A sample's
        score is its pseudo-value, auc + samples x influence: its share of auc, times the number of
        samples.
        """
        import numpy as np

        require_outputs("auc", outputs, references)
        pairs = self._gather(outputs, references)
        clicked = int(pairs.clicked.sum())
        if clicked in (0, len(pairs.clicked)):
            raise scorer_error(
                f"scorer auc: all {len(pairs.clicked):,} labels are {int(clicked > 0)}; AUC "
                "compares pairs that were clicked with pairs that were not, so score more samples, "
                "or correct the data set",
            )
        area, influences = auc(pairs)
        shares, clicks = Shares(len(outputs)), pairs.clicked_of_samples()
        shares.add(clicks)
        shares.add(np.diff(pairs.ends, prepend=0) - clicks)
        pseudo = 100.0 * (area + len(influences) * influences)
        return Scores(
            per_sample={"auc": pseudo.tolist()},
            aggregate={"auc": 100.0 * area},
            whole=frozenset({"auc"}),
            leverage={"auc": shares.leverage(100.0)},
            chance={"auc": 50.0},
        )

    def _gather(self, outputs: Sequence[bytes], references: Sequence[Any]) -> UserItemPairs:
        """Join all samples in buffers that grow in place: a list of arrays would need both."""
        import numpy as np

        predictions, clicked = bytearray(), bytearray()
        ends = np.empty(len(outputs), np.int64)
        for sample in range(len(outputs)):
            output, labels = outputs[sample], np.asarray(references[sample]).ravel()
            ones = labels == 1
            if not (ones | (labels == 0)).all():
                raise _wrong(sample, "has a label that is neither 0 nor 1; correct the data set")
            predictions += self._predictions(sample, output, ones)
            clicked += ones.tobytes()
            ends[sample] = len(clicked)
        pairs = UserItemPairs(
            predictions=np.frombuffer(predictions, "<f4"),
            clicked=np.frombuffer(clicked, np.bool_),
            ends=ends,
        )
        pairs.require_finite()
        return pairs

    def _predictions(self, sample: int, output: bytes, clicked: NDArray[np.bool_]) -> bytes:
        import numpy as np

        width = 2 if self._asked.interleaved else 1
        if not len(clicked):
            raise _wrong(sample, "has no user-item pairs; correct the data set")
        if len(output) != 4 * width * len(clicked):
            each = "a prediction and a label" if self._asked.interleaved else "one prediction"
            raise _wrong(
                sample,
                f"has {len(clicked)} user-item pairs, but its output has {len(output)} bytes "
                f"instead of {4 * width * len(clicked)}; give {each} per pair as float32, and set "
                "the scorer's interleaved to whether labels are there",
            )
        if not self._asked.interleaved:
            return output
        numbers = np.frombuffer(output, "<f4")
        if not np.array_equal(numbers[1::2], clicked):
            raise _wrong(
                sample,
                "has other labels in its output than in the data set; the engine must answer each "
                "sample with its own pairs, in their order",
            )
        return numbers[::2].tobytes()


def _wrong(sample: int, defect: str) -> RunError:
    return scorer_error(f"scorer auc: sample {sample} {defect}")


@dataclass(frozen=True, kw_only=True, slots=True)
class UserItemPairs:
    """The user-item pairs of all samples, one sample after the other.

    Attributes:
        predictions: Shape (pairs,), float32.
        clicked: Whether each pair's label is 1, shape (pairs,).
        ends: For each sample, where its pairs end, shape (samples,); no sample is empty.
    """

    predictions: NDArray[np.float32]
    clicked: NDArray[np.bool_]
    ends: NDArray[np.int64]

    def require_finite(self) -> None:
        """Refuse predictions that have no rank."""
        import numpy as np

        for start in range(0, len(self.predictions), PIECE_PAIRS):
            wrong = np.flatnonzero(~np.isfinite(self.predictions[start : start + PIECE_PAIRS]))
            if len(wrong):
                pair = start + int(wrong[0])
                sample = int(np.searchsorted(self.ends, pair, side="right"))
                first = int(self.ends[sample - 1]) if sample else 0
                raise _wrong(
                    sample,
                    f"has the prediction {self.predictions[pair]} for its pair {pair - first}, "
                    "which is not finite; correct the engine",
                )

    def pieces(self) -> Iterator[tuple[slice, slice]]:
        """Yield samples and their pairs, about PIECE_PAIRS pairs at a time."""
        import numpy as np

        first, start = 0, 0
        while first < len(self.ends):
            last = int(np.searchsorted(self.ends, start + PIECE_PAIRS, side="right"))
            last = max(last, first + 1)
            end = int(self.ends[last - 1])
            yield slice(first, last), slice(start, end)
            first, start = last, end

    def clicked_of_samples(self) -> NDArray[np.int64]:
        """Return how many clicked pairs each sample has, shape (samples,)."""
        import numpy as np

        starts = np.concatenate([np.zeros(1, np.int64), self.ends[:-1]])
        return np.add.reduceat(self.clicked, starts, dtype=np.int64)

    def starts(self, samples: slice) -> NDArray[np.int64]:
        """Return where each of these samples begins, counted from the first pair of the first."""
        import numpy as np

        begin = self.ends[samples.start - 1] if samples.start else 0
        inner = self.ends[samples.start : samples.stop - 1] - begin
        return np.concatenate([np.zeros(1, np.int64), inner])


def auc(pairs: UserItemPairs) -> tuple[float, NDArray[np.float64]]:
    """Return the area under the ROC curve, 0 to 1, and the influence of each sample, (samples,).

    A clicked pair's influence is (V10 - AUC) / clicked, where V10 is the share of other pairs below
    it. Another pair's is (V01 - AUC) / others, where V01 is the share of clicked pairs above it.
    Equal predictions count half. A sample's influence is the sum over its pairs, and all of them
    add up to 0. Shares are added up as whole numbers of half pairs, which is exact. Both kinds must
    occur.

    Source: structural components of DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988) 837,
    which are the infinitesimal jackknife of AUC.
    """
    import numpy as np

    levels, many = np.unique(pairs.predictions[pairs.clicked], return_counts=True)
    clicked = int(many.sum())
    others = len(pairs.clicked) - clicked
    beaten, places = _rank_others(pairs, levels, many)
    # Twice the other pairs that each level wins against; those on the level count half.
    wins = 2 * np.cumsum(places)[: 2 * len(levels) : 2] + places[1 : 2 * len(levels) : 2]
    clicks, won = np.empty((2, len(pairs.ends)), np.int64)  # samples' clicked pairs, their wins
    for samples, within in pairs.pieces():
        mine, starts = pairs.clicked[within], pairs.starts(samples)
        gained = np.zeros(len(mine), np.int64)
        gained[mine] = wins[np.searchsorted(levels, pairs.predictions[within][mine])]
        won[samples] = np.add.reduceat(gained, starts)
        clicks[samples] = np.add.reduceat(mine.astype(np.int64), starts)
    area = int(beaten.sum()) / (2 * clicked * others)
    rest = np.diff(pairs.ends, prepend=0) - clicks
    influences: NDArray[np.float64] = (won / (2 * others) - clicks * area) / clicked + (
        beaten / (2 * clicked) - rest * area
    ) / others
    return area, influences


def _rank_others(
    pairs: UserItemPairs, levels: NDArray[np.float32], many: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Place the other pairs among the clicked pairs' ascending `levels` of `many` pairs each.

    First return for each sample twice the clicked pairs above its other pairs, summed, (samples,).
    Then return the other pairs just below and on each level in turn, and last those above all
    levels, shape (2 levels + 2,).
    """
    import numpy as np

    upto = np.concatenate([[0], np.cumsum(many)])
    # By place, as in the second result: clicked pairs below and on it.
    lost = np.repeat(2 * (upto[-1] - upto), 2)
    lost[1:-1:2] -= many
    beaten = np.empty(len(pairs.ends), np.int64)
    places = np.zeros(len(lost), np.int64)
    for samples, within in pairs.pieces():
        predictions, other = pairs.predictions[within], ~pairs.clicked[within]
        order = np.argsort(predictions)  # a search for sorted values is many times as fast
        ranked = predictions[order]
        level = np.searchsorted(levels, ranked)
        place = 2 * level + (levels[np.minimum(level, len(levels) - 1)] == ranked)
        above = np.empty(len(order), np.int64)
        above[order] = lost[place]
        beaten[samples] = np.add.reduceat(above * other, pairs.starts(samples))
        places += np.bincount(place[other[order]], minlength=len(places))
    return beaten, places
