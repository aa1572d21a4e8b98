"""`pytest-mlperf round`: what an MLPerf Inference round asks: seeds, gates, limits, counts."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from pytest_mlperf.cli.output import add_parser, show, width
from pytest_mlperf.cli.round_workload import ADAPTERS, detail, full_name, limit
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.foreign_text import json_text
from pytest_mlperf.reports.layout import Row, fold, paragraphs, table
from pytest_mlperf.rounds import (
    ROUNDS,
    Round,
    RoundMetric,
    RoundScenario,
    RoundWorkload,
    load_round,
)
from pytest_mlperf.suite.values import nearest

SCHEMA = 1
"""Version of what `--json` prints."""

SHORT = {
    "Offline": "Off",
    "Server": "Srv",
    "Interactive": "Int",
    "SingleStream": "SS",
    "MultiStream": "MS",
}
"""Scenarios as the table writes them."""


def add_command(commands: Any) -> None:
    """Register the subcommand."""
    parser = add_parser(
        commands,
        "round",
        summary="what an MLPerf round asks: gates, limits, counts",
        description=(
            "Prints the rules of an MLPerf Inference round that suites are held to: LoadGen's\n"
            "seeds, and of each workload its data set, gates, limits, scenarios and\n"
            "compliance tests. With a workload: everything about it. The official profile\n"
            "has these figures, a quick one the limits only."
        ),
        needs="nothing; the rounds come with the package",
        examples=[
            ("round v6.1", "every workload of the round, in tables"),
            ("round v4.1 llama2-70b-99.9", "one workload: every figure, and its names"),
            ("round v6.1 resnet --json", "the same for programs"),
        ],
    )
    parser.add_argument("name", metavar="NAME", help=f"the round: {', '.join(ROUNDS)}")
    parser.add_argument(
        "workload",
        metavar="WORKLOAD",
        nargs="?",
        help='by LoadGen\'s name ("resnet50") or the submission checker\'s ("bert-99.9")',
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Print a round, or one workload of it.

    Raises:
        MlperfError: There is no such round or workload.
    """
    if parsed.name not in ROUNDS:
        raise MlperfError(f"there is no round {parsed.name!r}{nearest(parsed.name, ROUNDS)}")
    found = load_round(parsed.name)
    one = None if parsed.workload is None else _one(found, parsed.workload)
    if parsed.json:
        content = document(found, found.workloads.values() if one is None else [one])
        print(json_text(content))
    else:
        show(_overview(found, width()) if one is None else detail(found, one, width()))
    return 0


def _one(found: Round, name: str) -> RoundWorkload:
    """Return a workload by name: with all its targets unless the name says one."""
    own = found.find(name)
    if own is None:
        raise MlperfError(f"{name!r} is no workload of {found.name}{nearest(name, found.names)}")
    return found.workloads[own.name] if name in (own.name, own.checker) else own


# --- json ------------------------------------------------------------------------------------


def document(found: Round, workloads: Iterable[RoundWorkload]) -> dict[str, Any]:
    """Return a round as JSON: its tables, with names, the adapter and computed gates."""
    return {
        "schema": SCHEMA,
        "kind": "pytest-mlperf round",
        "round": found.name,
        "seeds": {
            "qsl": found.qsl_seed,
            "sample_index": found.sample_index_seed,
            "schedule": found.schedule_seed,
        },
        "workloads": {own.name: _tidy(_workload(found, own)) for own in workloads},
    }


def _workload(found: Round, own: RoundWorkload) -> dict[str, Any]:
    return {
        **asdict(own),
        "adapter": ADAPTERS.get(own.name),
        "scorer": own.scorer or None,
        "names": found.workloads[own.name].names,
        "checker_names": own.checker_names,
        "metrics": _metrics(own.metrics),
        "gates": _gates(own, own.metrics),
        "scenarios": {
            name: _scenario(own, name, scenario) for name, scenario in own.scenarios.items()
        },
    }


def _scenario(own: RoundWorkload, name: str, scenario: RoundScenario) -> dict[str, Any]:
    """Return a scenario without the figures that only others have."""
    content = {
        **asdict(scenario),
        "metrics": _metrics(scenario.metrics),
        "gates": _gates(own, scenario.metrics),
    }
    if name == "Offline":
        del content["latency_percentile"]
    if name != "MultiStream":
        del content["samples_per_query"]
    return content


def _metrics(metrics: Mapping[str, RoundMetric]) -> dict[str, Any]:
    """Return scores without what they do not have: those held to a target have no share."""
    return {
        name: {key: value for key, value in asdict(metric).items() if value is not None}
        for name, metric in metrics.items()
    }


def _tidy(value: Any) -> Any:
    """Return JSON with its floats at 12 significant digits: 23.05007 x 0.99 is exact in none."""
    match value:
        case float():
            return float(f"{value:.12g}")
        case dict():
            return {key: _tidy(own) for key, own in value.items()}
        case list() | tuple():
            return [_tidy(own) for own in value]
        case _:
            return value


def _gates(own: RoundWorkload, metrics: Mapping[str, RoundMetric]) -> dict[str, Any]:
    return {
        f"{100 * target:g}": {
            name: dict(zip(("lowest", "highest"), metric.bounds(target), strict=True))
            for name, metric in metrics.items()
        }
        for target in own.targets
        if metrics
    }


# --- every workload --------------------------------------------------------------------------


def _overview(found: Round, columns: int) -> Iterator[str]:
    yield f"MLPerf Inference {found.name}"
    seeds = (
        f"qsl {found.qsl_seed}",
        f"sample_index {found.sample_index_seed}",
        f"schedule {found.schedule_seed}",
    )
    yield from paragraphs("seeds", seeds, columns)
    yield ""
    left = ["workload, data set", "gate"]
    rows = [row for own in found.workloads.values() for row in _gate_rows(own)]
    yield from table(["workload, data set", "samples", "gate"], rows, columns, left=left)
    yield ""
    names = ["workload", "Server", "Interactive", "datacenter", "edge", "tests"]
    rows = [_run_row(own) for own in found.workloads.values()]
    yield from table(names, rows, columns, left=names)
    yield ""
    letters = ", ".join(f"{short} {name}" for name, short in SHORT.items())
    yield from fold(f"limits: latency, or TTFT / TPOT; {letters}; optional in brackets", columns)
    yield from fold("tests: compliance tests of a closed submission, TEST01 as 01", columns)
    for own in found.workloads.values():
        if not own.loadgen:
            yield from fold(f"{own.name} runs under MLCommons endpoints, not LoadGen", columns)
    yield f"more: pytest-mlperf round {found.name} WORKLOAD"


def _gate_rows(own: RoundWorkload) -> Iterator[Row]:
    """Yield a row per gate; the first two carry the workload and its data set."""
    gates = [_gate(metric, own.targets) for metric in own.metrics.values()]
    for name, scenario in own.scenarios.items():
        gates += [f"{name}: {_gate(m, own.targets)}" for m in scenario.metrics.values()]
    heads = [full_name(own), f"  {own.dataset}"]
    samples = [f"{own.dataset_samples:,}"]
    for index in range(max(len(gates), len(heads))):
        cells = zip(("workload, data set", "samples", "gate"), (heads, samples, gates), strict=True)
        yield {key: texts[index] if index < len(texts) else "" for key, texts in cells}


def _gate(metric: RoundMetric, targets: Iterable[float]) -> str:
    """Return what a score must reach in a few words: at several targets one after the other."""
    bounds = list(dict.fromkeys(metric.bounds(target) for target in targets))
    low, high = bounds[0]
    if low is not None and high is not None:
        return f"{metric.name} {_short(low)} to {_short(high)}"
    sign, place = ("≥", 0) if low is not None else ("≤", 1)
    shown = [_short(ends[place]) for ends in bounds]
    return f"{metric.name} {sign} {' / '.join(shown)}"


def _run_row(own: RoundWorkload) -> Row:
    return {
        "workload": full_name(own),
        **{name: limit(own.scenarios.get(name)) for name in ("Server", "Interactive")},
        **{kind: _scenarios(own, kind) for kind in ("datacenter", "edge")},
        "tests": " ".join(test.removeprefix("TEST") for test in own.compliance) or "-",
    }


def _scenarios(own: RoundWorkload, kind: str) -> str:
    system = own.systems.get(kind)
    if system is None:
        return "-"
    required = " ".join(SHORT[name] for name in system.required)
    optional = " ".join(SHORT[name] for name in system.optional)
    return f"{required} ({optional})" if optional else required


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.7g}"
