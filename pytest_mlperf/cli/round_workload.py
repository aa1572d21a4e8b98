"""Everything that a round says about one workload, in words and tables."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_mlperf.reports.layout import Row, duration, fold, paragraph, paragraphs, table
from pytest_mlperf.rounds import Ends, Round, RoundMetric, RoundScenario, RoundWorkload

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
    "stable-diffusion-xl": "coco_captions",
    "dlrm-v2": "criteo",
}
"""Which data set of ours reads the files of a workload; this release has none for the others."""


def detail(found: Round, own: RoundWorkload, columns: int) -> Iterator[str]:
    """Yield what a round says about one workload.

    Args:
        found: The round.
        own: The workload, with all its targets or with one.
        columns: Columns of the terminal.
    """
    yield from fold(f"{full_name(own)} of MLPerf Inference {found.name}: {own.title}", columns)
    yield from paragraph("task", own.task, columns)
    yield from paragraph("names", ", ".join(found.workloads[own.name].names), columns)
    yield from paragraph("checker", ", ".join(own.checker_names), columns)
    yield from paragraph("data set", "; ".join(_data(own)), columns)
    if tokens := "; ".join(_tokens(own)):
        yield from paragraph("tokens", tokens, columns)
    adapter = ADAPTERS.get(own.name)
    how = f"{adapter}: pytest-mlperf options {adapter}" if adapter else "none in this release"
    yield from paragraph("adapter", how, columns)
    yield from paragraph("scorer", own.scorer or "none in this release", columns)
    yield from paragraph("systems", "; ".join(_systems(own)), columns)
    yield from paragraph("tests", ", ".join(own.compliance) or "none", columns)
    if not own.loadgen:
        yield from paragraph("harness", "MLCommons endpoints, not LoadGen", columns)
    yield ""
    names = ["gate", "target", "reference", "lowest", "highest", "checker's key"]
    yield from table(names, list(_metric_rows(own)), columns, left=["gate", "checker's key"])
    for metric in own.metrics.values():
        yield from fold(_words(metric), columns, rest="  ")
    yield ""
    names = ["scenario", "queries", "shortest", "limit", "percentile"]
    rows = [_scenario_row(name, scenario) for name, scenario in own.scenarios.items()]
    yield from table(names, rows, columns, left=["scenario", "limit"])
    results = [f"{scenario.result} ({name})" for name, scenario in own.scenarios.items()]
    yield from paragraphs("reported", results, columns)
    if own.checksums:
        yield ""
        yield "checksums of data files"
        yield from (f"  {name}  {checksum}" for name, checksum in own.checksums.items())


def full_name(own: RoundWorkload) -> str:
    """Return the name with its targets, "bert-99/-99.9", where they are part of it."""
    suffixes = [f"-{100 * target:g}" for target in own.targets] if own.suffixed else []
    return own.name + "/".join(suffixes)


def limit(scenario: RoundScenario | None) -> str:
    """Return the limit of a latency, or those of TTFT and TPOT; "-" where there is none."""
    if scenario is None:
        return "-"
    limits = (scenario.latency_limit_ms, scenario.ttft_limit_ms, scenario.tpot_limit_ms)
    shown = [_time(limit) for limit in limits if limit is not None]
    if len(shown) == 2 and all(text.endswith(" ms") for text in shown):
        shown[0] = shown[0].removesuffix(" ms")
    return "/".join(shown) or "-"


def _time(ms: float) -> str:
    return f"{ms / 1000:g} s" if ms >= 1000 else f"{ms:g} ms"


# --- paragraphs ------------------------------------------------------------------------------


def _data(own: RoundWorkload) -> Iterator[str]:
    yield f"{own.dataset}, {own.dataset_samples:,} samples"
    yield f"{own.performance_samples:,} in memory in performance runs"
    if own.accuracy_samples is not None:
        yield f"{own.accuracy_samples:,} in accuracy runs"
    for name, scenario in own.scenarios.items():
        if scenario.accuracy_samples is not None:
            yield f"{scenario.accuracy_samples:,} of its own in {name}"
    if own.equal_issue:
        yield "every sample issued equally often"


def _tokens(own: RoundWorkload) -> Iterator[str]:
    if own.max_output_tokens is not None:
        least = f"{own.min_output_tokens} to " if own.min_output_tokens else "at most "
        yield f"{least}{own.max_output_tokens:,} an answer"
    if own.accuracy_output_tokens is not None:
        yield f"at most {own.accuracy_output_tokens:,} in accuracy runs"
    if own.tokens:
        yield "counted and timed"
    if own.inferred_tokens is not None:
        yield f"counted as {own.inferred_tokens} a sample"


def _systems(own: RoundWorkload) -> Iterator[str]:
    if not own.systems:
        yield "none: the checker lists it, but neither for the datacenter nor for the edge"
    for kind, system in own.systems.items():
        text = f"{kind} {', '.join(system.required)}"
        if system.optional:
            words = "at least one of" if system.one_optional else "optional"
            text += f", {words} {', '.join(system.optional)}"
        if system.targets:
            text += f" (only {', '.join(f'{100 * target:g} %' for target in system.targets)})"
        yield text


def _words(metric: RoundMetric) -> str:
    """Return what the table cannot say about a score: its direction, its window."""
    better = {"lower": "lower is better", "neither": "neither higher nor lower is better"}
    words = [better[metric.better]] if metric.better in better else []
    if metric.within:
        words.append("scores within a window pass" if None not in metric.within else "a pass mark")
    elif metric.share:
        low, high = (f"{100 * end:g} %" if end is not None else "" for end in metric.share)
        ends = (
            f"{low} to {high}" if low and high else f"at least {low}" if low else f"at most {high}"
        )
        words.append(f"{ends} of the reference passes")
    return f"{metric.name}: {'; '.join(words)}" if words else ""


# --- tables ----------------------------------------------------------------------------------


def _metric_rows(own: RoundWorkload) -> Iterator[Row]:
    """Yield a row per score and target; one row where all targets have the same bounds."""
    groups = [("", own.metrics), *((f"{n}: ", s.metrics) for n, s in own.scenarios.items())]
    for prefix, metrics in groups:
        for metric in metrics.values():
            bounds: dict[Ends, float] = {}
            for target in own.targets:
                bounds.setdefault(metric.bounds(target), target)
            for (low, high), target in bounds.items():
                yield {
                    "gate": f"{prefix}{metric.name}",
                    "target": "" if metric.within or metric.share else f"{100 * target:g} %",
                    "reference": _exact(metric.reference),
                    "lowest": _exact(low),
                    "highest": _exact(high),
                    "checker's key": metric.checker,
                }


def _scenario_row(name: str, scenario: RoundScenario) -> Row:
    batch = f" x {scenario.samples_per_query}" if name == "MultiStream" else ""
    return {
        "scenario": name,
        "queries": f"{scenario.min_query_count:,}{batch}",
        "shortest": duration(scenario.min_duration_ms / 1000),
        "limit": limit(scenario),
        "percentile": "" if name == "Offline" else f"{100 * scenario.latency_percentile:g}",
    }


def _exact(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"
