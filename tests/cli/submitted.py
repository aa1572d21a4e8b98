"""A submission that nothing is wrong with: what LoadGen would have written, and the rest."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytest_mlperf.reports.export.submission.layout import DETAIL, SUMMARY, Leaf
from pytest_mlperf.reports.export.submission.rules import MAY_BE_EMPTY, PREPARED, TEXTS, Files
from pytest_mlperf.rounds import load_round
from pytest_mlperf.rounds.accuracy_txt import accuracy_lines
from pytest_mlperf.rounds.compliance import TESTS, other_seeds
from pytest_mlperf.run.logs import PREFIX


def log(path: Path, values: Mapping[str, Any], last: str = "num_errors") -> None:
    """Write a detail log that ends in order."""
    ended = {**{key: value for key, value in values.items() if key != last}}
    ended[last] = values.get(last, 0 if last == "num_errors" else "11-24-2026 18:00:00.000")
    lines = [
        PREFIX + json.dumps({"key": key, "value": value, "metadata": {"is_error": False}})
        for key, value in ended.items()
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", "utf-8")


def seeds(round_name: str, test: str = "") -> dict[str, int]:
    rules = load_round(round_name)
    other = other_seeds(round_name) if test == "TEST05" else None
    return {
        "effective_qsl_rng_seed": other.qsl if other else rules.qsl_seed,
        "effective_sample_index_rng_seed": other.sample_index if other else rules.sample_index_seed,
        "effective_schedule_rng_seed": other.schedule if other else rules.schedule_seed,
    }


def submitted(
    root: Path,
    round_name: str,
    benchmark: str,
    scenario: str,
    *,
    division: str = "closed",
    kind: str = "datacenter",
) -> Leaf:
    """Write one result with all that belongs to it; return where it is."""
    rules = load_round(round_name)
    workload = rules.find(benchmark)
    assert workload is not None
    constants = workload.scenarios[scenario]
    leaf = Leaf(
        round=round_name,
        top=f"{division}/Acme",
        system="box",
        benchmark=benchmark,
        scenario=scenario,
    )
    run = {
        "effective_scenario": "Server" if scenario == "Interactive" else scenario,
        "effective_test_mode": "PerformanceOnly",
        **seeds(round_name),
        "effective_performance_sample_count": workload.performance_samples,
        "effective_min_duration_ms": constants.min_duration_ms,
        "effective_samples_per_query": constants.min_query_count,
        "effective_target_latency_ns": int((constants.latency_limit_ms or 0) * 1e6),
        "requested_use_token_latencies": workload.tokens,
        "result_first_token_99.00_percentile_latency_ns": 1_000_000,
        "result_time_per_output_token_99.00_percentile_ns": 1_000_000,
        "early_stopping_met": True,
        "result_validity": "VALID",
    }
    log(root / leaf.performance / DETAIL, run)
    samples = constants.accuracy_samples or workload.accuracy_samples or workload.dataset_samples
    scored = {"effective_test_mode": "AccuracyOnly", "qsl_reported_total_count": samples}
    log(root / leaf.accuracy / DETAIL, scored, "power_end")
    for folder in (leaf.performance, leaf.accuracy):
        (root / folder / SUMMARY).write_text("Result is : VALID\n", "utf-8")
    scores = {name: metric.reference for name, metric in workload.metrics.items()}
    text = "\n".join([*accuracy_lines(scores, workload.metrics), "hash=abc", ""])
    (root / leaf.accuracy / "accuracy.txt").write_text(text, "utf-8")
    (root / leaf.accuracy / "mlperf_log_accuracy.json").write_text("[\n]\n", "utf-8")
    _beside(root, leaf, division, kind)
    for test in workload.compliance if division == "closed" else ():
        audit = root / leaf.audit(test)
        log(audit / "performance/run_1" / DETAIL, {**run, **seeds(round_name, test)})
        (audit / "performance/run_1" / SUMMARY).write_text("Result is : VALID\n", "utf-8")
        for name in TESTS[test].verified:
            (audit / name).write_text(VERIFIED, "utf-8")
    return leaf


VERIFIED = """\
First token check pass: True
EOS check pass: True
Sample length check pass: True
TEST PASS
"""


def _beside(root: Path, leaf: Leaf, division: str, kind: str) -> None:
    system = {**dict.fromkeys(TEXTS, "N/A"), **dict.fromkeys(MAY_BE_EMPTY, "")}
    system |= {"division": division, "submitter": "Acme", "system_type": kind}
    write(root / leaf.description, json.dumps({**system, "status": "available"}))
    write(root / leaf.implementation("engine"), json.dumps(dict.fromkeys(PREPARED, "none")))
    write(root / leaf.source("engine") / "engine.py", "pass\n")
    write(root / leaf.measurements / "user.conf", "*.Offline.target_qps = 1\n")
    write(root / leaf.measurements / "README.md", "Run it.\n")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def read(root: Path) -> Files:
    """Return the files of a tree."""
    return {p.relative_to(root).as_posix(): p for p in root.rglob("*") if p.is_file()}


def edited(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the values of a JSON file, or of a detail log."""
    if path.suffix == ".json":
        table = json.loads(path.read_text("utf-8"))
        change(table)
        path.write_text(json.dumps(table), "utf-8")
        return
    entries = [json.loads(line[len(PREFIX) :]) for line in path.read_text("utf-8").splitlines()]
    values = {entry["key"]: entry["value"] for entry in entries}
    last = entries[-1]["key"]
    change(values)
    log(path, values, last)
