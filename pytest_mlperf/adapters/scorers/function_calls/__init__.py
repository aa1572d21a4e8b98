"""Score function calls as MLPerf's Qwen3.6 27B benchmark does: BFCL v4, single-turn subsets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pytest_mlperf import Scores
from pytest_mlperf.adapters.lazy import NDArray, np
from pytest_mlperf.adapters.scorers import NoOptions, ScorerBase, reading_reference, require_outputs
from pytest_mlperf.adapters.scorers.function_calls._check import is_right
from pytest_mlperf.adapters.scorers.function_calls._extract import calls_in, tool_calls

SIMPLE_SUBSETS = ("simple_python", "simple_java", "simple_javascript")
LIVE_SUBSETS = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple")
IRRELEVANT = ("irrelevance", "live_irrelevance")
"""Subsets whose right answer calls no function."""

NON_LIVE = (SIMPLE_SUBSETS, ("multiple",), ("parallel",), ("parallel_multiple",))
SUBSETS = (*SIMPLE_SUBSETS, *(name for (name,) in NON_LIVE[1:]), *LIVE_SUBSETS, *IRRELEVANT)


class FunctionCallsScorer(ScorerBase[NoOptions]):
    """Compare a model's function calls with the right calls of BFCL v4's single-turn subsets.

    - "accuracy": 100 if all calls of a sample are right, else 0; the mean over samples.
    - "normalized": the mean of three scores: non-live (subsets weigh the same; the simple subsets
      together weigh as one), live (samples weigh the same), and irrelevance (subsets weigh the
      same).

    Source: src/inference_endpoint/evaluation/bfcl_v4_scorer.py and extractor.py of
    https://github.com/mlcommons/endpoints, and the AST checker of bfcl-eval 2026.3.23. As in these,
    an answer calls no function if it is not a JSON list of tool calls, Java and JavaScript
    arguments must be text, and parallel calls are matched without backtracking. Answers that end
    the reference's scoring with an error count as wrong, and so do Java or JavaScript arguments of
    more than 1,000 characters. Calls within plain text are searched in the first 4,096 characters.
    No part of an answer is executed.
    """

    metrics = ("accuracy", "normalized")

    def score(self, outputs: Sequence[bytes], references: Sequence[Any]) -> Scores:
        """Score answers against right calls; return the metrics of the class, in per cent.

        Outputs are UTF-8: tool calls as JSON, or text. References are dicts with BFCL's `subset`;
        `func_description`, the list of functions; and `ground_truth`, a list with the function's
        name and the allowed values of its arguments for each call. Both lists may be JSON texts. A
        sample's "normalized" score is its jackknife pseudo-value: normalized + number of samples x
        influence.
        """
        require_outputs("function_calls", outputs, references)
        subsets, right = [], []
        for sample in range(len(outputs)):
            subset, allowed, functions = _reference(sample, references[sample])
            subsets.append(subset)
            right.append(_is_right(outputs[sample], subset, allowed, functions))
        scores = 100.0 * np.array(right, np.float64)
        subset_names = np.array(subsets)
        weights = _weights(subset_names)
        value = float(weights @ scores)
        # Each sample moves the mean of its own subset, or of all live.
        strata = np.where(np.isin(subset_names, LIVE_SUBSETS), "live", subset_names)
        deviations = np.empty(len(scores))
        for stratum in np.unique(strata):
            chosen = strata == stratum
            deviations[chosen] = scores[chosen] - scores[chosen].mean()
        pseudo = value + len(scores) * weights * deviations
        return Scores(
            per_sample={"accuracy": scores.tolist(), "normalized": pseudo.tolist()},
            aggregate={"accuracy": 100.0 * sum(right) / len(right), "normalized": value},
            whole=frozenset({"normalized"}),
        )


def _is_right(output: bytes, subset: str, allowed: Any, functions: Any) -> bool:
    text = output.decode("utf-8", "replace")
    if subset in IRRELEVANT:
        return tool_calls(text) is None
    calls = calls_in(text)
    return is_right(calls, allowed, functions, subset) if allowed else not calls


def _reference(sample: int, reference: Any) -> tuple[str, Any, Any]:
    names = ("ground_truth", "func_description")
    form = f"a table with subset, one of {', '.join(SUBSETS)}, and the lists {' and '.join(names)}"
    with reading_reference("function_calls", sample, form):
        subset = reference["subset"]
        values = [
            reference.get(name, []) if subset in IRRELEVANT else reference[name] for name in names
        ]
        lists = [json.loads(value) if isinstance(value, str) else value for value in values]
        if subset not in SUBSETS:
            raise ValueError(f"subset is {subset!r:.60}")
        if not all(isinstance(value, list) for value in lists):
            raise TypeError(f"{' or '.join(names)} is not a list")
    return subset, *lists


def _weights(subsets: NDArray[np.str_]) -> NDArray[np.float64]:
    """Return each sample's weight in the normalised score, shape (samples,); their sum is 1."""
    weights = np.zeros(len(subsets))
    groups = [
        [[[name] for name in part if name in subsets] for part in NON_LIVE],
        [[[*LIVE_SUBSETS]] if np.isin(subsets, LIVE_SUBSETS).any() else []],
        [[[name]] for name in IRRELEVANT if name in subsets],
    ]
    categories = [[part for part in group if part] for group in groups]
    present = [category for category in categories if category]
    for category in present:
        for part in category:
            for names in part:
                chosen = np.isin(subsets, names)
                weights[chosen] = 1 / (len(present) * len(category) * len(part) * chosen.sum())
    return weights
