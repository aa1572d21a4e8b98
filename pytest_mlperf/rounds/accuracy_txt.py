"""Format scores as the lines of accuracy.txt that MLPerf's submission checker parses.

Source: output of the reference scripts in https://github.com/mlcommons/inference, and the names in
tools/submission/submission_checker/constants.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_mlperf.rounds import RoundMetric

TABLED: Mapping[str, str] = {
    "ROUGE1": "rouge1",
    "ROUGE2": "rouge2",
    "ROUGEL": "rougeL",
    "ROUGELSUM": "rougeLsum",
    "GEN_LEN": "gen_len",
    "TOKENS_PER_SAMPLE": "tokens_per_sample",
    "CLIP_SCORE": "CLIP_SCORE",
    "FID_SCORE": "FID_SCORE",
    "gsm8k_accuracy": "gsm8k",
    "mbxp_accuracy": "mbxp",
    "exact_match": "exact_match",
    "vbench_score": "vbench_score",
}
"""Scores printed together as one Python dict, by the checker's key."""

SCORE_LINES: Mapping[str, tuple[str, str]] = {
    "acc": ("accuracy=", "%"),
    "AUC": ("AUC=", "%"),
    "mAP": ("mAP=", "%"),
    "DICE": ("Accuracy: mean = ", ""),
    "F1_HIERARCHICAL": ('{"f1": ', "}"),
    "E2E_ACCURACY": ("Accuracy: ", ""),
    "DLRM_NE": ("metric/lifetime_ne/rating: ", ""),
    "DLRM_ACC": ("metric/lifetime_accuracy/rating: ", ""),
    "DLRM_AUC": ("metric/lifetime_gauc/rating: ", ""),
}
"""Scores with a line of their own: text before and after the number."""

SCORE_PREFIX_LINES: Mapping[str, str] = {
    "F1": '{{"exact_match": {}, "f1": {}}}',
    "ACCURACY": "Word Error Rate: {}%, accuracy={}%",
}
"""Lines in which another number precedes the score."""

UNGATED = "-"

DIGITS = 6


def accuracy_lines(scores: Mapping[str, float], metrics: Mapping[str, RoundMetric]) -> list[str]:
    """Return the lines that the checker parses; leave out missing scores."""
    lines, table = [], {}
    for name, metric in metrics.items():
        if name not in scores or metric.checker == UNGATED:
            continue
        number = _number(scores[name])
        if metric.checker in TABLED:
            table[TABLED[metric.checker]] = number
        elif metric.checker in SCORE_PREFIX_LINES:
            other = scores.get("exact_match", 0.0) if metric.checker == "F1" else 100 - scores[name]
            lines.append(SCORE_PREFIX_LINES[metric.checker].format(_number(other), number))
        else:
            prefix, suffix = SCORE_LINES[metric.checker]
            lines.append(f"{prefix}{number}{suffix}")
    if table:
        lines.append("{" + ", ".join(f"'{name}': {value}" for name, value in table.items()) + "}")
    return lines


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.{DIGITS}f}"
