"""Score ranked candidates as MLPerf's DLRM v3 benchmark does: entropy, accuracy, GAUC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_mlperf import RunError, Scores
from pytest_mlperf.adapters import scorers
from pytest_mlperf.adapters.lazy import NDArray, np
from pytest_mlperf.adapters.scorers.leverage import ratio_scores

MIN_DISTANCE = 1e-12
"""Minimum distance of predictions and of the mean label from 0 and 1."""

SMOOTH = 1e-9
"""Added to the sum of the requests' AUC, and twice to their number."""

FORM = (
    "float32 numbers: step, query, the predictions, labels and weights of N candidates each, and N"
)


Ranked = tuple[float, float, float, float, float | None]
"""Sums over the candidates of one request: weighted cross entropy [bits]; weights with label 1,
with label 0, and on the right side of 0.5, which itself predicts 1; weighted AUC or None."""


class RankingScorer(scorers.ScorerBase[scorers.NoOptions]):
    """Compare predictions with the labels in each output.

    - "normalized_entropy": cross entropy of the predictions, divided by the cross entropy of always
      predicting the mean label.
    - "accuracy": weighted fraction of candidates that are classified correctly at threshold 0.5.
    - "gauc": mean of the requests' weighted AUC; 0.5 if no request has an AUC. Requests are left
      out if all labels are equal, or if each prediction is 0 or equals the first one.

    float32 and float64 are used as in torchrec 1.3.0, which recommendation/dlrm_v3/accuracy.py of
    https://github.com/mlcommons/inference calls. Ties are ranked in the order of the output, as
    torch's sort does for up to 16 candidates. With fractional weights, sums may differ in the 7th
    digit. If references have labels, the labels in an output must equal them; MLPerf's script does
    not check this.
    """

    metrics = ("normalized_entropy", "accuracy", "gauc")

    def score(self, outputs: Sequence[bytes], references: Sequence[Any]) -> Scores:
        """Score all requests in one pass; return the metrics of the class.

        Outputs are little-endian float32: time step, query number, n predictions, n labels (0 or
        1), n weights, and n. A reference is None, or a dict whose "step", "query" and "labels" must
        equal those in the output. A sample's "normalized_entropy" and "accuracy" are jackknife
        pseudo-values: score + number of samples x influence.
        """
        scorers.require_outputs("ranking", outputs, references)
        requests = [
            _ranked(sample, outputs[sample], references[sample]) for sample in range(len(outputs))
        ]
        *sums, areas = zip(*requests, strict=True)
        entropy, positive, negative, right = np.array(sums, np.float64)
        if not (weight := float((positive + negative).sum())):
            raise scorers.scorer_error(
                f"scorer ranking: the candidates of all {len(requests)} samples have weight 0, so "
                "nothing can be scored; correct the weights that the engine returns",
            )
        mean = min(max(float(positive.sum()) / weight, MIN_DISTANCE), 1 - MIN_DISTANCE)
        alone = -positive * np.log2(mean) - negative * np.log2(1 - mean)
        counted = [area for area in areas if area is not None]
        # The mean label is the best constant, so that its own influence is 0.
        scored = {
            "normalized_entropy": ratio_scores(entropy, alone),
            "accuracy": ratio_scores(right, positive + negative),
        }
        return Scores(
            per_sample={
                **{name: pseudo for name, (pseudo, _) in scored.items()},
                "gauc": list(areas),
            },
            aggregate={
                "normalized_entropy": float(entropy.sum() / alone.sum()),
                "accuracy": float(right.sum() / weight),
                "gauc": (sum(counted) + SMOOTH) / (len(counted) + 2 * SMOOTH),
            },
            lower=frozenset({"normalized_entropy"}),
            whole=frozenset({"normalized_entropy", "accuracy"}),
            leverage={name: leverage for name, (_, leverage) in scored.items()},
        )


def _ranked(sample: int, output: bytes, reference: Any) -> Ranked:
    if len(output) % 4 or len(output) < 12:
        raise _wrong(sample, f"has {len(output)} bytes; it must be a row of {FORM}")
    row = np.frombuffer(output, "<f4")
    if not np.isfinite(row).all():
        position = int(np.flatnonzero(~np.isfinite(row))[0])
        raise _wrong(
            sample,
            f"has {row[position]} at position {position} of its row; check the engine for an "
            "overflow",
        )
    count = (len(row) - 3) // 3
    if row[-1] != count or len(row) != 3 + 3 * count or not count:
        raise _wrong(
            sample,
            f"has {len(row)} numbers, which does not fit its last one, N = {row[-1]:g}; it must be "
            f"a row of {FORM}",
        )
    predictions, labels, weights = row[2:-1].reshape(3, count)
    if not ((labels == 0) | (labels == 1)).all():
        raise _wrong(sample, "has a label that is neither 0 nor 1")
    if (weights < 0).any():
        raise _wrong(sample, "has a weight below 0")
    _compare(sample, row, labels, reference)
    clipped = predictions.astype(np.float64).clip(MIN_DISTANCE, 1 - MIN_DISTANCE)
    entropy = -weights * labels * np.log2(clipped) - weights * (1 - labels) * np.log2(1 - clipped)
    return (
        float(entropy.sum()),
        float((weights * labels).sum()),
        float((weights * (1 - labels)).sum()),
        float((weights * ((predictions >= 0.5) == labels)).sum()),
        _auc(predictions, labels, weights),
    )


def _compare(sample: int, row: NDArray[Any], labels: NDArray[Any], reference: Any) -> None:
    if reference is None:
        return
    if not isinstance(reference, Mapping):
        raise scorers.scorer_error(
            f"scorer ranking: the reference of sample {sample} is a {type(reference).__name__}; "
            "let the data set's reference(index) return a table or None"
        )
    answered = {"step": row[:1], "query": row[1:2], "labels": labels}
    for name, numbers in answered.items():
        if name in reference:
            with scorers.reading_reference("ranking", sample, f"a table with numbers as {name}"):
                expected = np.asarray(reference[name], np.float32).ravel()
            if not np.array_equal(numbers, expected):
                raise _wrong(
                    sample,
                    f"has a different {name} than the data set; the engine must answer each sample "
                    "with its own candidates, in their order",
                )


def _auc(
    predictions: NDArray[np.float32], labels: NDArray[np.float32], weights: NDArray[np.float32]
) -> float | None:
    if ((predictions == predictions[0]) | (predictions == 0)).all():
        return None
    order = np.argsort(predictions, kind="stable")
    labels, weights = labels[order], weights[order]
    positive, negative = weights * labels, weights * (1 - labels)
    if not (positive.any() and negative.any()):
        return None
    lower = np.cumsum(negative, dtype=np.float64).astype(np.float32)
    pairs = positive.sum() * negative.sum() + np.float32(1e-10)
    return float((positive * lower).sum() / pairs)


def _wrong(sample: int, defect: str) -> RunError:
    return scorers.scorer_error(f"scorer ranking: the output of sample {sample} {defect}")
