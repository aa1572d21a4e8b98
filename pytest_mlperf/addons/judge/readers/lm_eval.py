"""Read lm-evaluation-harness: aggregate results with standard errors, and per-document samples."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.judge.files import Reader, ResultFile, has_keys, run_of
from pytest_mlperf.addons.judge.model import Fact, Quantity, TaskScore, ToolPoint, ToolRun
from pytest_mlperf.addons.judge.readers.fields import JsonObject, number
from pytest_mlperf.judge import Direction

_DIRECTIONS: dict[Any, Direction] = {True: Direction.HIGHER, False: Direction.LOWER}

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
    "limit of documents": "limit",
}

_HARNESS = {"harness version": "lm_eval_version", "few-shot seed": "fewshot_seed"}

_TASK_FACTS = {"subset": "dataset_name", "split": "test_split", "repeats": "repeats"}


def _results(document: ResultFile) -> Iterator[ToolRun]:
    raw = document.head
    tasks = JsonObject({**raw.at("groups"), **raw.at("results")})
    points = (_task(task, tasks.at(task), raw) for task in tasks)
    yield run_of(
        document,
        "lm-eval",
        points=tuple(point for point in points if point.scores),
        started=raw.moment("date"),
        commit=raw.text("git_hash"),
        version=raw.text("lm_eval_version"),
        details=JsonObject({**raw.at("config"), **raw}).texts(
            *("model_name", "transformers_version", "batch_size", "model"),
            *("model_args", "model_revision", "model_sha", "model_dtype"),
        ),
    )


def _task(task: str, scores: JsonObject, raw: JsonObject) -> ToolPoint:
    directions, settings = raw.at("higher_is_better", task), raw.at("config")
    by_name: dict[str, TaskScore] = {}
    quantities: dict[str, Quantity] = {}
    for key, value in scores.items():
        metric, _, part = key.partition(",")
        score = number(value)
        if metric.endswith("_stderr") or score is None or metric in {"sample_len", "alias"}:
            continue
        stderr = scores.positive(f"{metric}_stderr{',' if part else ''}{part}")
        name = f"{metric},{part}" if part and part != "none" else metric
        by_name[name] = TaskScore(score, stderr)
        quantities[name] = _quantity(name, directions.get(metric))
    hashes = raw.at("task_hashes").plain(task)
    documents = raw.at("n-samples", task).number("effective")
    whole = JsonObject({**settings, **raw})
    return ToolPoint(
        name=task,
        scores=by_name,
        quantities=quantities,
        facts={
            "task version": Fact(raw.at("versions").plain(task)),
            "few-shot examples": Fact(raw.at("n-shot").plain(task)),
            "documents": Fact(documents),
            **{
                title: Fact(fact.value or "none")
                for title, fact in whole.facts(_WHOLE_RUN_FACTS).items()
            },
            "generation settings": Fact(_settings(settings.get("gen_kwargs"))),
            # Equal prompts make the version of the harness irrelevant.
            **({"prompts": Fact(hashes)} if hashes else whole.facts(_HARNESS)),
            **raw.at("configs", task).facts(_TASK_FACTS),
        },
    )


def _settings(value: Any) -> str:
    return str(dict(sorted(value.items()))) if isinstance(value, Mapping) else str(value or "none")


def _quantity(name: str, higher: Any) -> Quantity:
    base = name.partition(",")[0]
    usual = False if base in _LOWER else bool(_HIGHER.fullmatch(base)) or None
    direction = _DIRECTIONS.get(usual if higher is None else higher, Direction.NEITHER)
    return Quantity(name, "", direction, limit=0.01)


def _samples(document: ResultFile) -> Iterator[ToolRun]:
    """Read a samples file of one task; yield one run with per-document scores."""
    named = re.match(r"samples_(.+?)_\d{4}-", document.path.name)
    lines_by_filter: dict[str, list[JsonObject]] = defaultdict(list)
    for line in document.objects:
        lines_by_filter[str(line.get("filter", "none"))].append(line)
    scores: dict[str, TaskScore] = {}
    for name, lines in lines_by_filter.items():
        documents = [f"{line['doc_id']} {line.get('doc_hash', '')}" for line in lines]
        if len(set(documents)) < len(lines):
            raise MlperfError(
                f"{document.path}: a document occurs twice: the file holds two evaluations; keep "
                "the lines of one of them"
            )
        metrics = lines[0].get("metrics")
        for metric in (
            metrics if isinstance(metrics, list) else [key for key in lines[0] if key != "doc_id"]
        ):
            values = (line.get(metric) for line in lines)
            scored = (float(v) if isinstance(v, bool) else number(v) for v in values)
            pairs = zip(documents, scored, strict=True)
            there = {key: value for key, value in pairs if value is not None}
            if there:
                score = TaskScore(sum(there.values()) / len(there), samples=there)
                scores[str(metric) if name == "none" else f"{metric},{name}"] = score
    point = ToolPoint(
        name=named[1] if named else "samples",
        scores=scores,
        quantities={metric: _quantity(metric, None) for metric in scores},
        facts={
            "prompts": Fact(_digest(document, "prompt_hash")),
            "targets": Fact(_digest(document, "target_hash")),
        },
    )
    yield run_of(document, "lm-eval-samples", points=(point,))


def _digest(document: ResultFile, key: str) -> str | None:
    if key not in document.head:
        return None
    hashes = sorted({f"{line['doc_id']} {line.get(key, '')}" for line in document.objects})
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()[:16]


_MARKS = ("versions", "n-shot", "configs", "higher_is_better", "lm_eval_version")
LM_EVAL_RESULTS = Reader(
    title="lm-evaluation-harness", recognise=has_keys("results", marks=_MARKS), read=_results
)
LM_EVAL_SAMPLES = Reader(
    title="lm-eval's samples",
    recognise=has_keys("doc_id", marks=("filtered_resps", "doc_hash")),
    read=_samples,
)
