"""Score click predictions by the area under the ROC curve, as MLPerf's accuracy-dlrm.py does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_mlperf import RunError, Scores
from pytest_mlperf.adapters import scorers
from pytest_mlperf.adapters.lazy import NDArray, np
from pytest_mlperf.adapters.scorers.leverage import Shares, whole_scores

PIECE_PAIRS = 2**22
"""Pairs ranked at a time; the intermediate arrays take about 200 MB."""


@dataclass(frozen=True, kw_only=True)
class AucOptions:
    """Options of scorer auc.

    Attributes:
        interleaved: Whether each prediction in an output is followed by its label, as in MLPerf's
            reference implementation. The labels must equal the data set's.
    """

    interleaved: bool = False

    def __post_init__(self) -> None:
        scorers.require_flag("auc", "interleaved", self.interleaved)


class AucScorer(scorers.ScorerBase[AucOptions]):
    """Compute one area under the ROC curve over the user-item pairs of all samples.

    AUC is the probability that a clicked pair has a higher prediction than a pair that was not
    clicked; ties count half. The result equals that of scikit-learn's roc_auc_score on float32,
    which the reference calls. MLPerf's 89 million pairs need about 1 GB of memory: 5 bytes per
    pair, and about 50 bytes per clicked pair (3 %).
    Source: recommendation/dlrm_v2/pytorch/tools/accuracy-dlrm.py of
    https://github.com/mlcommons/inference.
    """

    metrics = ("auc",)

    def score(self, outputs: Sequence[bytes], references: Sequence[Any]) -> Scores:
        """Score predictions against labels in one pass; return "auc" over all pairs, in per cent.

        Outputs are float32, little-endian; references are labels 0 or 1, shape (pairs,). A sample's
        score is its jackknife pseudo-value: auc + number of samples x influence.
        """
        scorers.require_outputs("auc", outputs, references)
        pairs = self._gather(outputs, references)
        clicked = int(pairs.clicked.sum())
        if clicked in (0, len(pairs.clicked)):
            raise scorers.scorer_error(
                f"scorer auc: all {len(pairs.clicked):,} labels are {int(clicked > 0)}; AUC "
                "compares pairs that were clicked with pairs that were not, so score more samples, "
                "or correct the data set",
            )
        area, influences = auc(pairs)
        shares, clicks = Shares(len(outputs)), pairs.clicked_of_samples()
        shares.add(clicks)
        shares.add(np.diff(pairs.ends, prepend=0) - clicks)
        pseudo = 100.0 * (area + len(influences) * influences)
        scores = whole_scores("auc", 100.0 * area, pseudo.tolist(), shares.leverage(100.0))
        return replace(scores, chance={"auc": 50.0})

    def _gather(self, outputs: Sequence[bytes], references: Sequence[Any]) -> UserItemPairs:
        """Join all samples in two buffers that grow in place, to need half the memory of a list."""
        predictions, clicked = bytearray(), bytearray()
        ends = np.empty(len(outputs), np.int64)
        for sample in range(len(outputs)):
            output, labels = outputs[sample], np.asarray(references[sample]).ravel()
            is_clicked = labels == 1
            if not (is_clicked | (labels == 0)).all():
                raise _error(sample, "has a label that is neither 0 nor 1; correct the data set")
            predictions += self._predictions(sample, output, is_clicked)
            clicked += is_clicked.tobytes()
            ends[sample] = len(clicked)
        pairs = UserItemPairs(
            predictions=np.frombuffer(predictions, "<f4"),
            clicked=np.frombuffer(clicked, np.bool_),
            ends=ends,
        )
        pairs.require_finite()
        return pairs

    def _predictions(self, sample: int, output: bytes, clicked: NDArray[np.bool_]) -> bytes:
        width = 2 if self._asked.interleaved else 1
        if not len(clicked):
            raise _error(sample, "has no user-item pairs; correct the data set")
        if len(output) != 4 * width * len(clicked):
            content = "a prediction and a label" if self._asked.interleaved else "one prediction"
            raise _error(
                sample,
                f"has {len(clicked)} user-item pairs, but its output has {len(output)} bytes "
                f"instead of {4 * width * len(clicked)}; give {content} per pair as float32, or "
                f"set the scorer's interleaved = {str(not self._asked.interleaved).lower()}",
            )
        if not self._asked.interleaved:
            return output
        values = np.frombuffer(output, "<f4")
        if not np.array_equal(values[1::2], clicked):
            raise _error(
                sample,
                "has other labels in its output than in the data set; the engine must answer each "
                "sample with its own pairs, in their order",
            )
        return values[::2].tobytes()


def _error(sample: int, defect: str) -> RunError:
    return scorers.scorer_error(f"scorer auc: sample {sample} {defect}")


@dataclass(frozen=True, kw_only=True, slots=True)
class UserItemPairs:
    """Hold the user-item pairs of all samples, in the order of samples.

    Attributes:
        predictions: Predicted click probabilities, shape (pairs,), float32.
        clicked: Whether each pair's label is 1, shape (pairs,).
        ends: Index after the last pair of each sample, shape (samples,); no sample is empty.
    """

    predictions: NDArray[np.float32]
    clicked: NDArray[np.bool_]
    ends: NDArray[np.int64]

    def require_finite(self) -> None:
        """Raise an error if a prediction is NaN or infinite."""
        for start in range(0, len(self.predictions), PIECE_PAIRS):
            invalid = np.flatnonzero(~np.isfinite(self.predictions[start : start + PIECE_PAIRS]))
            if len(invalid):
                pair = start + int(invalid[0])
                sample = int(np.searchsorted(self.ends, pair, side="right"))
                first = int(self.ends[sample - 1]) if sample else 0
                raise _error(
                    sample,
                    f"has the prediction {self.predictions[pair]} for its pair {pair - first}, "
                    "which is not finite; correct the engine",
                )

    def pieces(self) -> Iterator[tuple[slice, slice]]:
        """Yield (slice of samples, slice of their pairs) in blocks of about PIECE_PAIRS pairs."""
        first, start = 0, 0
        while first < len(self.ends):
            last = int(np.searchsorted(self.ends, start + PIECE_PAIRS, side="right"))
            last = max(last, first + 1)
            end = int(self.ends[last - 1])
            yield slice(first, last), slice(start, end)
            first, start = last, end

    def clicked_of_samples(self) -> NDArray[np.int64]:
        """Return the number of clicked pairs of each sample, shape (samples,)."""
        starts = np.concatenate([np.zeros(1, np.int64), self.ends[:-1]])
        return np.add.reduceat(self.clicked, starts, dtype=np.int64)

    def starts(self, samples: slice) -> NDArray[np.int64]:
        """Return the index of each sample's first pair, relative to the slice's first pair."""
        begin = self.ends[samples.start - 1] if samples.start else 0
        inner = self.ends[samples.start : samples.stop - 1] - begin
        return np.concatenate([np.zeros(1, np.int64), inner])


def auc(pairs: UserItemPairs) -> tuple[float, NDArray[np.float64]]:
    """Return the area under the ROC curve, 0 to 1, and each sample's influence, (samples,).

    There must be clicked pairs and other pairs. The influence of a clicked pair is (V10 - AUC) /
    number of clicked pairs; V10 is the fraction of other pairs with a lower prediction. The
    influence of another pair is (V01 - AUC) / number of other pairs; V01 is the fraction of clicked
    pairs with a higher prediction. Ties count half. A sample's influence is the sum over its pairs;
    all influences add up to 0.
    Source: structural components of DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988) 837,
    which are the infinitesimal jackknife of AUC.
    """
    levels, counts = np.unique(pairs.predictions[pairs.clicked], return_counts=True)
    clicked = int(counts.sum())
    others = len(pairs.clicked) - clicked
    losses, ranks = _rank_others(pairs, levels, counts)
    # Twice the number of other pairs below each level; ties count half.
    wins = 2 * np.cumsum(ranks)[: 2 * len(levels) : 2] + ranks[1 : 2 * len(levels) : 2]
    clicks, won = np.empty((2, len(pairs.ends)), np.int64)
    for samples, within in pairs.pieces():
        mine, starts = pairs.clicked[within], pairs.starts(samples)
        pair_wins = np.zeros(len(mine), np.int64)
        pair_wins[mine] = wins[np.searchsorted(levels, pairs.predictions[within][mine])]
        won[samples] = np.add.reduceat(pair_wins, starts)
        clicks[samples] = np.add.reduceat(mine.astype(np.int64), starts)
    area = int(losses.sum()) / (2 * clicked * others)
    rest = np.diff(pairs.ends, prepend=0) - clicks
    influences: NDArray[np.float64] = (won / (2 * others) - clicks * area) / clicked + (
        losses / (2 * clicked) - rest * area
    ) / others
    return area, influences


def _rank_others(
    pairs: UserItemPairs, levels: NDArray[np.float32], counts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Compare pairs that were not clicked ("other pairs") with the clicked pairs.

    `levels` are the distinct predictions of clicked pairs, ascending; `counts` are the clicked
    pairs per level. Returns two arrays. (samples,): twice the number of clicked pairs above each
    sample's other pairs, ties counted once. (2 levels + 2,): the number of other pairs just below
    and at each level, and above all levels.
    """
    cumulative = np.concatenate([[0], np.cumsum(counts)])
    pair_losses = np.repeat(2 * (cumulative[-1] - cumulative), 2)
    pair_losses[1:-1:2] -= counts
    losses = np.empty(len(pairs.ends), np.int64)
    rank_counts = np.zeros(len(pair_losses), np.int64)
    for samples, within in pairs.pieces():
        predictions, other = pairs.predictions[within], ~pairs.clicked[within]
        order = np.argsort(predictions)  # searching sorted values is many times faster
        ranked = predictions[order]
        level = np.searchsorted(levels, ranked)
        ranks = 2 * level + (levels[np.minimum(level, len(levels) - 1)] == ranked)
        above = np.empty(len(order), np.int64)
        above[order] = pair_losses[ranks]
        losses[samples] = np.add.reduceat(above * other, pairs.starts(samples))
        rank_counts += np.bincount(ranks[other[order]], minlength=len(rank_counts))
    return losses, rank_counts
