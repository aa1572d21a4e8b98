"""Define MLPerf's compliance tests and their LoadGen settings."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.job import Seeds
from pytest_mlperf.rounds import RoundMetric


@dataclass(frozen=True, kw_only=True)
class AuditTest:
    """Describe a compliance test.

    Attributes:
        shows: Property that the test verifies, in words.
        logs: Whether a submission must contain LoadGen's summary and detail logs.
        answers: Whether a submission must contain LoadGen's log of answers.
        needs: What the test is compared with: "run" (a performance run), "answers" or both.
        verified: Files that the verification writes.
    """

    shows: str
    logs: bool = True
    answers: bool = False
    needs: tuple[str, ...] = ()
    verified: tuple[str, ...] = ("verify_accuracy.txt",)


VERIFIED_FILES = ("verify_accuracy.txt", "verify_performance.txt")
SPEED = ("verify_performance.txt",)

TESTS: Mapping[str, AuditTest] = {
    "TEST01": AuditTest(
        shows="answers of a timed run are those of the accuracy run",
        answers=True,
        needs=("run", "answers"),
        verified=VERIFIED_FILES,
    ),
    "TEST04": AuditTest(
        shows="a sample that is sent repeatedly is not answered faster",
        needs=("run",),
        verified=SPEED,
    ),
    "TEST05": AuditTest(shows="other seeds give the same speed", needs=("run",), verified=SPEED),
    "TEST06": AuditTest(
        shows="token counts match the tokens in the answers", logs=False, answers=True
    ),
    "TEST07": AuditTest(
        shows="a timed run on a small data set is as accurate as required", answers=True
    ),
    "TEST08": AuditTest(
        shows="predictions of a timed run are those of the accuracy run", needs=("answers",)
    ),
    "TEST09": AuditTest(
        shows="answers of a timed run are as long as the reference's",
        answers=True,
        verified=("verify_output_len.txt",),
    ),
}


@cache
def constants() -> Mapping[str, Any]:
    """Return the constants of compliance.toml."""
    return tomllib.loads(files(__package__).joinpath("compliance.toml").read_text("utf-8"))


def audit_settings(test: str, workload: str) -> dict[str, int]:
    """Return LoadGen's audit.config settings for a test of a workload, by key."""
    table = constants()
    mode = {"mode": 2}
    logged = {**mode, "accuracy_log_rng_seed": table["accuracy_log_rng_seed"]}
    everything = {**logged, "min_duration": 0, "sample_concatenate_permutation": 0}
    if test in {Kind.TEST01, Kind.TEST08}:
        target = table["logged"].get(workload, table["logged"]["default"])
        return {**logged, "accuracy_log_sampling_target": target}
    if test == Kind.TEST04:
        queries = table["same"]["queries"].get(workload)
        return {
            **mode,
            "performance_issue_unique": 0,
            "performance_issue_same": 1,
            "performance_issue_same_index": table["same"]["index"],
            **({"min_query_count": queries} if queries else {}),
        }
    if test == Kind.TEST06:
        queries = table["tokens"]["queries"]
        return {**everything, "accuracy_log_sampling_target": queries, "min_query_count": queries}
    if test in {Kind.TEST07, Kind.TEST09}:
        queries = table["small"]["queries"]
        if test == Kind.TEST09:
            queries = table["length"].get(workload, table["length"]["gpt-oss-120b"])["queries"]
        return {
            **everything,
            "accuracy_log_sampling_target": 10_000 if test == Kind.TEST09 else queries,
            "min_query_count": queries,
            **({} if workload == "e2e-rag-qna" else {"performance_issue_unique": 1}),
        }
    return mode


def test05_seeds(round_name: str) -> Seeds | None:
    """Return a round's seeds for compliance test TEST05; None if it has no such test."""
    seeds = constants()["seeds"].get(round_name)
    return Seeds(**seeds) if seeds else None


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
    """Return the score lines in the form that MLPerf's checker parses; omit missing scores."""
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
