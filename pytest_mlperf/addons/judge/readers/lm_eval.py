"""Read lm-evaluation-harness: results with standard errors, and samples by document."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.judge.files import Reader, ResultFile, run_of
from pytest_mlperf.addons.judge.model import (
    HIGHER,
    LOWER,
    NEITHER,
    Fact,
    Quantity,
    TaskScore,
    ToolPoint,
    ToolRun,
)
from pytest_mlperf.addons.judge.readers.fields import mapping, moment, number, plain, text, texts

_DIRECTIONS = {True: HIGHER, False: LOWER}

_LOWER = {"perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte", "ter", "brier_score"}

_HIGHER = re.compile(
    r"(acc|acc_norm|acc_mutual_info|exact_match|em|f1|mcc|mc1|mc2|bleu|chrf|likelihood_diff|pass@.*|"
    r"pass_at_.*|rouge.*|prompt_level_.*|inst_level_.*|bypass)"
)
"""Metrics of the harness by their direction, for files that do not hold it."""

_WHOLE_RUN_FACTS = {
    "chat template": "chat_template_sha",
    "system instruction": "system_instruction_sha",
    "few-shot as turns": "fewshot_as_multiturn",
}

SCORE_LIMIT = 0.01


def _is_results(document: ResultFile) -> bool:
    head = document.head
    marks = ("versions", "n-shot", "configs", "higher_is_better", "lm_eval_version")
    return isinstance(head.get("results"), Mapping) and any(mark in head for mark in marks)


def _results(document: ResultFile) -> Iterator[ToolRun]:
    raw = document.head
    configuration = mapping(raw, "config")
    tasks = {**mapping(raw, "groups"), **mapping(raw, "results")}
    yield run_of(
        document,
        "lm-eval",
        points=tuple(
            point
            for task, scores in tasks.items()
            if isinstance(scores, Mapping)
            if (point := _task(str(task), scores, raw, configuration)).scores
        ),
        started=moment(raw.get("date")),
        commit=text(raw, "git_hash"),
        version=text(raw, "lm_eval_version"),
        details=texts({**configuration, **raw}, "transformers_version", "batch_size", "model"),
    )


def _task(
    task: str, scores: Mapping[str, Any], raw: Mapping[str, Any], configuration: Mapping[str, Any]
) -> ToolPoint:
    directions = mapping(raw, "higher_is_better", task)
    by_name: dict[str, TaskScore] = {}
    quantities: dict[str, Quantity] = {}
    for key, value in scores.items():
        metric, _, part = str(key).partition(",")
        score = number(value)
        if metric.endswith("_stderr") or score is None or metric in {"sample_len", "alias"}:
            continue
        stderr = number(scores.get(f"{metric}_stderr{',' if part else ''}{part}"))
        name = f"{metric},{part}" if part and part != "none" else metric
        by_name[name] = TaskScore(score, stderr)
        quantities[name] = _quantity(name, directions.get(metric))
    hashes = mapping(raw, "task_hashes").get(task)
    return ToolPoint(
        name=task,
        scores=by_name,
        quantities=quantities,
        facts={
            "task version": Fact(plain(mapping(raw, "versions").get(task))),
            "few-shot examples": Fact(plain(mapping(raw, "n-shot").get(task))),
            "documents": Fact(number(mapping(raw, "n-samples", task).get("effective"))),
            **{
                title: Fact(plain(raw.get(key)) or "none")
                for title, key in _WHOLE_RUN_FACTS.items()
            },
            "generation settings": Fact(_settings(configuration.get("gen_kwargs"))),
            "limit of documents": Fact(plain(configuration.get("limit")) or "none"),
            # Equal prompts make the version of the harness irrelevant.
            **(
                {"prompts": Fact(plain(hashes))}
                if hashes
                else {"harness version": Fact(plain(raw.get("lm_eval_version")))}
            ),
        },
    )


def _settings(value: Any) -> str:
    return str(dict(sorted(value.items()))) if isinstance(value, Mapping) else str(value or "none")


def _quantity(name: str, higher: Any) -> Quantity:
    base = name.partition(",")[0]
    usual = LOWER if base in _LOWER else HIGHER if _HIGHER.fullmatch(base) else NEITHER
    direction = _DIRECTIONS.get(higher, NEITHER if higher is not None else usual)
    return Quantity(name, "", direction, SCORE_LIMIT)


def _is_samples(document: ResultFile) -> bool:
    head = document.head
    return "doc_id" in head and ("filtered_resps" in head or "doc_hash" in head)


def _samples(document: ResultFile) -> Iterator[ToolRun]:
    """Yield one run of a task, with its scores named as in the results file."""
    named = re.match(r"samples_(.+?)_\d{4}-", document.path.name)
    lines_by_filter: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for line in document.objects:
        lines_by_filter[str(line.get("filter", "none"))].append(line)
    scores: dict[str, TaskScore] = {}
    prompts = set()
    for name, lines in lines_by_filter.items():
        documents = [f"{line['doc_id']} {line.get('doc_hash', '')}" for line in lines]
        if len(set(documents)) < len(lines):
            raise MlperfError(
                f"{document.path}: a document stands twice: two evaluations were appended to one "
                "file; keep the lines of one of them"
            )
        prompts |= {f"{line['doc_id']} {line.get('prompt_hash', '')}" for line in lines}
        metrics = lines[0].get("metrics")
        for metric in metrics if isinstance(metrics, list) else _numeric(lines[0]):
            values = zip(documents, (number(line.get(metric)) for line in lines), strict=True)
            there = {key: value for key, value in values if value is not None}
            if there:
                score = TaskScore(sum(there.values()) / len(there), samples=there)
                scores[str(metric) if name == "none" else f"{metric},{name}"] = score
    digest = hashlib.sha256("\n".join(sorted(prompts)).encode()).hexdigest()[:16]
    point = ToolPoint(
        name=named[1] if named else "samples",
        scores=scores,
        quantities={metric: _quantity(metric, None) for metric in scores},
        facts={"prompts": Fact(digest if "prompt_hash" in document.head else None)},
    )
    yield run_of(document, "lm-eval-samples", points=(point,))


def _numeric(line: Mapping[str, Any]) -> list[str]:
    return [key for key, value in line.items() if key != "doc_id" and number(value) is not None]


LM_EVAL_RESULTS = Reader(title="lm-evaluation-harness", recognise=_is_results, read=_results)
LM_EVAL_SAMPLES = Reader(title="lm-eval's samples", recognise=_is_samples, read=_samples)
