"""`pytest-mlperf round`: print the rules of an MLPerf Inference round."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from pytest_mlperf import MlperfError
from pytest_mlperf.cli.arguments import add
from pytest_mlperf.cli.output import show, width
from pytest_mlperf.extension import Scenario, duration, json_text, nearest
from pytest_mlperf.reports.terminal.layout import fold, paragraphs, table
from pytest_mlperf.rounds import (
    ROUNDS,
    Round,
    RoundMetric,
    RoundScenario,
    RoundWorkload,
    load_round,
)

ROUND_JSON_VERSION = 1
SCENARIO_ABBREVIATIONS = {
    Scenario.OFFLINE: "Off",
    Scenario.SERVER: "Srv",
    Scenario.INTERACTIVE: "Int",
    Scenario.SINGLE_STREAM: "SS",
    Scenario.MULTI_STREAM: "MS",
}

HELP = """\
Prints the rules of an MLPerf Inference round: LoadGen's seeds, and for each
workload its data set, accuracy gates, latency limits, scenarios and compliance
tests. Suites in the official profile follow all rules, suites in the quick
profile only the limits.

needs: nothing

examples:
  $ pytest-mlperf round v6.1
      every workload of the round, in tables
  $ pytest-mlperf round v4.1 llama2-70b-99.9
      all rules of one workload
  $ pytest-mlperf round v6.1 resnet --json
      the same for programs
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("name", metavar="NAME", help=f"the round: {', '.join(ROUNDS)}")
    parser.add_argument(
        "workload",
        metavar="WORKLOAD",
        nargs="?",
        help='name in LoadGen ("resnet50") or in the submission checker ("bert-99.9")',
    )
    add(parser, "--json")


def run(parsed: argparse.Namespace) -> int:
    """Print the rules of a round, or of one workload in it."""
    if parsed.name not in ROUNDS:
        raise MlperfError(f"no round {parsed.name!r}{nearest(parsed.name, ROUNDS)}")
    round_ = load_round(parsed.name)
    one = None if parsed.workload is None else _one(round_, parsed.workload)
    if parsed.json:
        print(json_text(document(round_, round_.workloads.values() if one is None else [one])))
    else:
        show(_overview(round_, width()) if one is None else detail(round_, one, width()))
    return 0


def _one(round_: Round, name: str) -> RoundWorkload:
    workload = round_.find(name)
    if workload is None:
        raise MlperfError(
            f"round {round_.name} has no workload {name!r}{nearest(name, round_.names)}"
        )
    whole = name in (workload.name, workload.checker)
    return round_.workloads[workload.name] if whole else workload


def document(round_: Round, workloads: Iterable[RoundWorkload]) -> dict[str, Any]:
    """Return the rules of a round as JSON, with names, seeds and accuracy gates."""
    return {
        "schema": ROUND_JSON_VERSION,
        "kind": "pytest-mlperf round",
        "round": round_.name,
        "seeds": _seeds(round_),
        "workloads": {own.name: _tidy(_workload(round_, own)) for own in workloads},
    }


def _workload(round_: Round, workload: RoundWorkload) -> dict[str, Any]:
    content = asdict(workload)
    lengths = content.pop("lengths")
    return {
        **content,
        **lengths,
        "adapter": ADAPTERS[workload.name],
        "scorer": workload.scorer or None,
        "names": round_.workloads[workload.name].names,
        "checker_names": workload.checker_names,
        **_scores(workload, workload.metrics),
        "scenarios": {
            name: _scenario(workload, name, scenario)
            for name, scenario in workload.scenarios.items()
        },
    }


def _scenario(workload: RoundWorkload, name: Scenario, scenario: RoundScenario) -> dict[str, Any]:
    others = {
        "latency_percentile": name == Scenario.OFFLINE,
        "samples_per_query": name != Scenario.MULTI_STREAM,
    }
    content = {**asdict(scenario), **_scores(workload, scenario.metrics)}
    return {key: value for key, value in content.items() if not others.get(key)}


def _scores(workload: RoundWorkload, metrics: Mapping[str, RoundMetric]) -> dict[str, Any]:
    gates = {
        f"{100 * target:g}": {
            name: dict(zip(("lowest", "highest"), metric.bounds(target), strict=True))
            for name, metric in metrics.items()
        }
        for target in workload.targets
        if metrics
    }
    scores = {
        name: {key: value for key, value in asdict(metric).items() if value is not None}
        for name, metric in metrics.items()
    }
    return {"metrics": scores, "gates": gates}


def _tidy(value: Any) -> Any:
    match value:
        case float():
            return float(f"{value:.12g}")
        case dict():
            return {key: _tidy(own) for key, own in value.items()}
        case list() | tuple():
            return [_tidy(own) for own in value]
        case _:
            return value


def _seeds(round_: Round) -> dict[str, int]:
    return {
        "qsl": round_.seeds.qsl,
        "sample_index": round_.seeds.sample_index,
        "schedule": round_.seeds.schedule,
    }


def _overview(round_: Round, columns: int) -> Iterator[str]:
    yield f"MLPerf Inference {round_.name}"
    seeds = [f"{name} {seed}" for name, seed in _seeds(round_).items()]
    yield from paragraphs("seeds", seeds, columns)
    yield ""
    left = ["workload, data set", "gate"]
    rows = [row for workload in round_.workloads.values() for row in _gate_rows(workload)]
    yield from table(rows, columns, left=left)
    yield ""
    names = ["workload", "Server", "Interactive", "datacenter", "edge", "tests"]
    rows = [_run_row(workload) for workload in round_.workloads.values()]
    yield from table(rows, columns, left=names)
    yield ""
    letters = ", ".join(f"{short} {name}" for name, short in SCENARIO_ABBREVIATIONS.items())
    yield from fold(f"limits: latency, or TTFT / TPOT; {letters}; brackets: optional", columns)
    yield from fold("tests: compliance tests for a closed submission (01 is TEST01)", columns)
    by: dict[tuple[str, ...], list[str]] = {}
    for workload in round_.workloads.values():
        by.setdefault(workload.harnesses, []).append(workload.name)
    for harnesses, workloads in by.items():
        if len(harnesses) > 1 or not round_.workloads[workloads[0]].loadgen:
            listed = ", ".join(workloads)
            yield from fold(f"measured by {' or '.join(harnesses)}: {listed}", columns)
    yield f"more: pytest-mlperf round {round_.name} WORKLOAD"


def _gate_rows(workload: RoundWorkload) -> Iterator[Mapping[str, str]]:
    gates = [_gate(metric, workload.targets) for metric in workload.metrics.values()]
    for name, scenario in workload.scenarios.items():
        gates += [f"{name}: {_gate(m, workload.targets)}" for m in scenario.metrics.values()]
    heads = [full_name(workload), f"  {workload.dataset}"]
    samples = [f"{workload.dataset_samples:,}"]
    for index in range(max(len(gates), len(heads))):
        cells = zip(("workload, data set", "samples", "gate"), (heads, samples, gates), strict=True)
        yield {key: texts[index] if index < len(texts) else "" for key, texts in cells}


def _gate(metric: RoundMetric, targets: Iterable[float]) -> str:
    bounds = list(dict.fromkeys(metric.bounds(target) for target in targets))
    low, high = bounds[0]
    if low is not None and high is not None:
        return f"{metric.name} {_figure(low, 7)} to {_figure(high, 7)}"
    sign, index = ("≥", 0) if low is not None else ("≤", 1)
    return f"{metric.name} {sign} {' / '.join([_figure(ends[index], 7) for ends in bounds])}"


def _run_row(workload: RoundWorkload) -> Mapping[str, str]:
    return {
        "workload": full_name(workload),
        **{
            name: limit(workload.scenarios.get(name))
            for name in (Scenario.SERVER, Scenario.INTERACTIVE)
        },
        **{kind: _scenarios(workload, kind) for kind in ("datacenter", "edge")},
        "tests": " ".join(test.removeprefix("TEST") for test in workload.compliance) or "-",
    }


def _scenarios(workload: RoundWorkload, kind: str) -> str:
    system = workload.systems.get(kind)
    if system is None:
        return "-"
    required = " ".join(SCENARIO_ABBREVIATIONS[name] for name in system.required)
    optional = " ".join(SCENARIO_ABBREVIATIONS[name] for name in system.optional)
    return f"{required} ({optional})" if optional else required


ADAPTERS = {
    "resnet50": "imagenet",
    "retinanet": "openimages",
    "3d-unet": "kits19",
    "bert": "squad",
    "gptj": "cnn_dailymail",
    "llama2-70b": "openorca",
    "llama3_1-8b": "cnn_dailymail",
    "llama3_1-8b-edge": "cnn_dailymail",
    "mixtral-8x7b": "mixtral",
    **dict.fromkeys(("llama3_1-405b", "deepseek-r1", "gpt-oss-120b"), "graded"),
    "qwen3-vl-235b-a22b": "shopify",
    "stable-diffusion-xl": "coco_captions",
    "dlrm-v2": "criteo",
    "whisper": "librispeech",
    "qwen3.6-27b": "bfcl",
    "yolo": "coco",
    "rgat": "igbh",
    "dlrm-v3": "streaming",
    "wan-2.2-t2v-a14b": "vbench",
    "pointpainting": "waymo",
    "e2e-rag-qna": "frames",
    "e2e-rag-db": "frames-pages",
}
"""The data set adapter of each workload."""


def detail(round_: Round, workload: RoundWorkload, columns: int) -> Iterator[str]:
    """Yield the rules of a workload as lines of text, at most `columns` wide."""
    head = f"{full_name(workload)} of MLPerf Inference {round_.name}: {workload.title}"
    yield from fold(head, columns)
    for label, text in _facts(round_, workload).items():
        yield from paragraphs(label, [text], columns)
    yield ""
    yield from table(list(_metric_rows(workload)), columns, left=["gate", "checker's key"])
    for metric in workload.metrics.values():
        yield from fold(_words(metric), columns, rest="  ")
    yield ""
    rows = [_scenario_row(name, scenario) for name, scenario in workload.scenarios.items()]
    yield from table(rows, columns, left=["scenario", "limit"])
    results = [f"{scenario.result} ({name})" for name, scenario in workload.scenarios.items()]
    yield from paragraphs("reported", results, columns)
    if workload.checksums:
        yield ""
        yield "checksums of data files"
        yield from (f"  {name}  {checksum}" for name, checksum in workload.checksums.items())


def _facts(round_: Round, workload: RoundWorkload) -> dict[str, str]:
    adapter, scorer = ADAPTERS[workload.name], workload.ungated_scorer
    ungated = f"{scorer} (you supply the tool or judge model); MLPerf's gate is not checked"
    return {
        "task": workload.task,
        "names": ", ".join(round_.workloads[workload.name].names),
        "checker": ", ".join(workload.checker_names),
        "data set": "; ".join(_data(workload)),
        "tokens": "; ".join(_tokens(workload)),
        "adapter": f"{adapter}: pytest-mlperf options {adapter}",
        "scorer": workload.scorer or ungated,
        **_answers(workload),
        "systems": "; ".join(_systems(workload)),
        "tests": ", ".join(workload.compliance) or "none",
        "harness": " or ".join(workload.harnesses),
    }


def _answers(workload: RoundWorkload) -> dict[str, str]:
    if not workload.temperatures:
        return {}
    reference, twin = (workload.temperatures[name] for name in ("reference", "twin"))
    return {
        "answers": f"sampled at temperature {reference:g}, so scores vary from run to run; if the "
        "suite sets no limits.accuracy, the allowed drop is at least the width of its confidence "
        "interval; the tiny model of this workload "
        + (f"samples at temperature {twin:g}" if twin else "uses greedy decoding")
    }


def full_name(workload: RoundWorkload) -> str:
    """Return a workload's name with its accuracy targets, if any: "bert-99/-99.9"."""
    suffixes = [f"-{100 * target:g}" for target in workload.targets] if workload.suffixed else []
    return workload.name + "/".join(suffixes)


def limit(scenario: RoundScenario | None) -> str:
    """Return the latency limits (TTFT, TPOT) of a scenario as text; "-" if it has none."""
    if scenario is None:
        return "-"
    limits = (scenario.latency_limit_ms, scenario.ttft_limit_ms, scenario.tpot_limit_ms)
    texts = [f"{ms / 1000:g} s" if ms >= 1000 else f"{ms:g} ms" for ms in limits if ms is not None]
    if len(texts) == 2 and all(text.endswith(" ms") for text in texts):
        texts[0] = texts[0].removesuffix(" ms")
    return "/".join(texts) or "-"


def _data(workload: RoundWorkload) -> Iterator[str]:
    yield f"{workload.dataset}, {workload.dataset_samples:,} samples"
    yield f"{workload.performance_samples:,} in memory in performance runs"
    if workload.accuracy_samples is not None:
        yield f"{workload.accuracy_samples:,} in accuracy runs"
    for name, scenario in workload.scenarios.items():
        if scenario.accuracy_samples is not None:
            yield f"{scenario.accuracy_samples:,} in {name}"
    if workload.equal_issue:
        yield "every sample issued equally often"


def _tokens(workload: RoundWorkload) -> Iterator[str]:
    if workload.lengths.max_output_tokens is not None:
        minimum = workload.lengths.min_output_tokens
        prefix = f"{minimum} to " if minimum else "at most "
        yield f"{prefix}{workload.lengths.max_output_tokens:,} per answer"
    if workload.lengths.accuracy_output_tokens is not None:
        yield f"at most {workload.lengths.accuracy_output_tokens:,} in accuracy runs"
    if workload.tokens:
        yield "counted and timed"
    if workload.lengths.inferred_tokens is not None:
        yield f"counted as {workload.lengths.inferred_tokens} per sample"


def _systems(workload: RoundWorkload) -> Iterator[str]:
    if not workload.systems:
        yield "none: MLCommons' checker lists it neither for datacenter nor for edge"
    for kind, system in workload.systems.items():
        text = f"{kind} {', '.join(system.required)}"
        if system.optional:
            words = "at least one of" if system.one_optional else "optional"
            text += f", {words} {', '.join(system.optional)}"
        if system.targets:
            text += f" (only {', '.join(f'{100 * target:g} %' for target in system.targets)})"
        yield text


def _words(metric: RoundMetric) -> str:
    better = {"lower": ["lower is better"], "neither": ["neither higher nor lower is better"]}
    words = [*better.get(metric.better, ())]
    if metric.within:
        fixed = "the gate is a fixed score, not a share of the reference"
        words.append("scores within a window pass" if None not in metric.within else fixed)
    elif metric.share:
        low, high = (f"{100 * end:g} %" if end is not None else "" for end in metric.share)
        bound = f"at least {low}" if low else f"at most {high}"
        bounds = f"{low} to {high}" if low and high else bound
        words.append(f"a score of {bounds} of the reference passes")
    return f"{metric.name}: {'; '.join(words)}" if words else ""


def _metric_rows(workload: RoundWorkload) -> Iterator[Mapping[str, str]]:
    scenarios = ((f"{name}: ", one.metrics) for name, one in workload.scenarios.items())
    for prefix, metrics in (("", workload.metrics), *scenarios):
        for metric in metrics.values():
            bounds: dict[tuple[float | None, float | None], float] = {}
            for target in workload.targets:
                bounds.setdefault(metric.bounds(target), target)
            for (low, high), target in bounds.items():
                yield {
                    "gate": f"{prefix}{metric.name}",
                    "target": "" if metric.within or metric.share else f"{100 * target:g} %",
                    "reference": _figure(metric.reference),
                    "lowest": _figure(low),
                    "highest": _figure(high),
                    "checker's key": metric.checker,
                }


def _scenario_row(name: str, scenario: RoundScenario) -> Mapping[str, str]:
    batch = f" x {scenario.samples_per_query}" if name == Scenario.MULTI_STREAM else ""
    return {
        "scenario": name,
        "queries": f"{scenario.min_query_count:,}{batch}",
        "shortest": duration(scenario.min_duration_ms / 1000),
        "limit": limit(scenario),
        "percentile": "" if name == Scenario.OFFLINE else f"{100 * scenario.latency_percentile:g}",
    }


def _figure(value: float | None, digits: int = 10) -> str:
    return "" if value is None else f"{value:.{digits}g}"
