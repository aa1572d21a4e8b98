"""Run `pytest-mlperf published`: list and filter MLCommons' official results."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.official.commands.round import SCENARIO_ABBREVIATIONS
from pytest_mlperf.addons.official.published_table import results_in, rounds_with_results, table_of
from pytest_mlperf.cli.output import integer_type, show, width
from pytest_mlperf.core.results import UNVERIFIED_LABEL
from pytest_mlperf.extension import csv_cell, json_text, markdown_text, nearest, plural
from pytest_mlperf.hardware.specs import find_gpu, known_gpus
from pytest_mlperf.reports.terminal.layout import fold, relative, table
from pytest_mlperf.rounds.published import OfficialResult, benchmarks, official_results

HELP = """\
Lists what MLCommons published of the rounds v4.1, v5.1, v6.0 and v6.1: closed
division, best first. A list holds only comparable results: the same workload,
scenario, unit, statistic and harness; a mean latency is never listed with a
90th percentile. Results derived from another scenario of LoadGen are marked
with ~, the open division with *, preview and RDI systems with ^.

needs: nothing; the results come with the package

examples:
  $ pytest-mlperf published llama2-70b-99.9 --accelerator H200 --per accelerator
      tokens/s of one H200 in every system that has some
  $ pytest-mlperf published --round v6.1 --scenario Interactive
      a scenario of one round
  $ pytest-mlperf published resnet50 --per watt --round v5.1
      where the power was measured
  $ pytest-mlperf published --division all --format csv > results.csv
      all of them, with every column
"""

PER_CHOICES = ("system", "accelerator", "watt")
RESULT_COLUMNS = tuple(one.name for one in fields(OfficialResult))
OUTPUT_FORMATS = ("table", "markdown", "csv", "json")

MAX_GROUP_RESULTS = 10
NOTE = (
    "The MLPerf name and logo are trademarks of MLCommons Association; these results are theirs, "
    "of github.com/mlcommons/inference_results_v4.1, _v5.1, _v6.0 and _v6.1."
)


@dataclass(frozen=True, kw_only=True)
class PublishedFigure:
    """Hold an official result's value per system, accelerator or watt."""

    result: OfficialResult
    value: float
    unit: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "workload", metavar="WORKLOAD", nargs="?", help='by any name: "bert", "llama2-70b-99.9"'
    )
    parser.add_argument(
        "--from",
        type=Path,
        metavar="FILE",
        dest="file",
        help="list the results of a file from import mlperf --rows instead",
    )
    parser.add_argument("--round", metavar="ROUND", help=", ".join(rounds_with_results()))
    parser.add_argument(
        "--scenario",
        choices=tuple(SCENARIO_ABBREVIATIONS),
        metavar="NAME",
        help=", ".join(SCENARIO_ABBREVIATIONS),
    )
    parser.add_argument("--accelerator", metavar="NAME", help="class, GPU model or part of a name")
    parser.add_argument("--submitter", metavar="NAME", help="part of the submitter's name")
    parser.add_argument(
        "--division", choices=("closed", "open", "all"), default="closed", help="default: closed"
    )
    parser.add_argument("--harness", choices=("loadgen", "endpoints"), help="who measured it")
    parser.add_argument("--per", choices=PER_CHOICES, default="system", help="unit of the value")
    parser.add_argument(
        "--format",
        choices=OUTPUT_FORMATS,
        default="table",
        help="default: table; csv and json contain all columns",
    )
    parser.add_argument(
        "--most",
        type=integer_type(1),
        default=MAX_GROUP_RESULTS,
        metavar="N",
        help=f"maximum results per group in a table; default: {MAX_GROUP_RESULTS}",
    )


def run(parsed: argparse.Namespace) -> int:
    """Print the official results that the arguments select."""
    figures = list(select(parsed))
    if parsed.format == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow((*RESULT_COLUMNS, "per", "figure"))
        for figure in figures:
            cells = [_cell(getattr(figure.result, name)) for name in RESULT_COLUMNS]
            writer.writerow((*cells, parsed.per, f"{figure.value:.9g}"))
    elif parsed.format == "json":
        print(json_text(table_of(documents(figures))))
    else:
        markdown = parsed.format == "markdown"
        show(listing(figures, parsed.most, width(), markdown=markdown, file=parsed.file))
    return 0


def select(parsed: argparse.Namespace) -> Iterator[PublishedFigure]:
    """Yield the results that the options select, by group, best first; MlperfError if none."""
    results = results_in(parsed.file) if parsed.file else official_results()
    rounds = tuple(dict.fromkeys(result.round for result in results))
    if parsed.round is not None and parsed.round not in rounds:
        raise MlperfError(
            f"there are no results of round {parsed.round!r}{nearest(parsed.round, rounds)}"
        )
    fits = [*_filters(parsed, results)]
    figures = [
        figure
        for result in results
        if parsed.round in (None, result.round)
        if all(fit(result) for fit in fits)
        if (figure := figure_per(result, parsed.per)) is not None
    ]
    if not figures:
        per = {"watt": " and has its power in watts", "accelerator": " and has accelerators"}
        raise MlperfError(
            f"no official result matches{per.get(parsed.per, '')}: use fewer filters, or "
            "--division all"
        )
    yield from sorted(figures, key=_order)


def figure_per(result: OfficialResult, per: str) -> PublishedFigure | None:
    """Divide a result by accelerators or watts ("system": by 1); None if that is undefined."""
    if per == "system":
        return PublishedFigure(result=result, value=result.value, unit=result.unit)
    if result.is_latency:
        return None
    divisor = result.count if per == "accelerator" else result.power
    if not divisor or (per == "watt" and result.power_unit != "W"):
        return None
    unit = {"accelerator": f"{result.unit} each", "watt": f"{result.unit}/W"}[per]
    return PublishedFigure(result=result, value=result.value / divisor, unit=unit)


def _order(figure: PublishedFigure) -> tuple[object, ...]:
    scenarios = list[str](SCENARIO_ABBREVIATIONS)
    model, scenario, *others = figure.result.kind
    return (
        *(model, scenarios.index(scenario), *others),
        figure.value if figure.result.is_latency else -figure.value,
    )


def _filters(
    parsed: argparse.Namespace, results: Sequence[OfficialResult]
) -> Iterator[Callable[[OfficialResult], bool]]:
    if parsed.workload is not None:
        names = _names(parsed.workload, results)
        yield lambda result: result.benchmark in names
    if parsed.division != "all":
        yield lambda result: result.division == parsed.division
    if parsed.scenario is not None:
        yield lambda result: result.scenario == parsed.scenario
    if parsed.harness is not None:
        yield lambda result: result.harness == parsed.harness
    if parsed.submitter is not None:
        part = parsed.submitter.lower()
        yield lambda result: part in result.submitter.lower().replace("_", " ")
    if parsed.accelerator is not None:
        yield _has_accelerator(parsed.accelerator)


def _names(workload: str, results: Sequence[OfficialResult]) -> frozenset[str]:
    there = {result.benchmark for result in results if result.division == "closed"}
    names = benchmarks(workload) | ({workload} & {result.benchmark for result in results})
    if not names:
        raise MlperfError(
            f"there are no official results of {workload!r}{nearest(workload, sorted(there))}"
        )
    return names


def _has_accelerator(text: str) -> Callable[[OfficialResult], bool]:
    kinds = known_gpus()
    classes = {spec.accelerator for spec in kinds.values()}

    def fits(result: OfficialResult) -> bool:
        if text not in kinds and text not in classes:
            return text.lower() in result.accelerator.lower()
        gpu = find_gpu(result.accelerator)
        return gpu is not None and text == (gpu.accelerator if text in classes else gpu.name)

    return fits


def documents(figures: Sequence[PublishedFigure]) -> list[Mapping[str, object]]:
    """Convert results to JSON objects; `figure` is the value per system, accelerator or watt."""
    return [
        document(figure.result) | {"figure": figure.value, "figure_unit": figure.unit}
        for figure in figures
    ]


def document(result: OfficialResult) -> dict[str, object]:
    """Convert a result to a JSON object by column name, without unknown values."""
    columns = {name: getattr(result, name) for name in RESULT_COLUMNS}
    return {name: value for name, value in columns.items() if value not in ("", None)}


def listing(
    figures: Sequence[PublishedFigure],
    max_rows: int,
    text_width: int,
    *,
    markdown: bool,
    file: Path | None = None,
) -> Iterator[str]:
    """Yield one table per group of comparable results, with at most `max_rows` results each.

    `file` is the results' source, None for MLCommons' tables; lines have `text_width` columns.
    """
    for (model, scenario, _unit, statistic, harness), group in groupby(
        figures, key=lambda figure: figure.result.kind
    ):
        rows = list(group)
        about = [model, scenario, rows[0].unit, statistic, "" if harness == "loadgen" else harness]
        title = ", ".join(text for text in about if text)
        cells = [_row(figure) for figure in rows[:max_rows]]
        names = ["value", "accelerators", "submitter", "system", "round"]
        if markdown:
            yield from (f"### {markdown_text(title)}", "", *_markdown(names, cells))
        else:
            left = names[1:]
            yield from (
                title,
                *table(cells, text_width, left=left, spare=["system", "submitter"]),
            )
        if len(rows) > max_rows:
            if markdown:
                yield ""
            yield f"{len(rows) - max_rows:,} more, shown with --most {len(rows)}"
        yield ""
    marks = "~ inferred from another scenario; * open division; ^ not yet available or RDI. "
    note = f"{relative(file)}: {UNVERIFIED_LABEL}" if file else NOTE
    yield from (
        [marks + note]
        if markdown
        else fold(f"{plural(len(figures), 'result')}. {marks}{note}", text_width)
    )


def _row(figure: PublishedFigure) -> Mapping[str, str]:
    result = figure.result
    marks = (result.inferred, "~"), (result.division == "open", "*")
    early = result.availability not in ("", "available")
    mark = "".join(sign for holds, sign in (*marks, (early, "^")) if holds)
    count = f"{result.count} x " if result.count else ""
    return {
        "value": f"{figure.value:,.6g}{mark}",
        "accelerators": f"{count}{result.accelerator}" if result.accelerator else "CPU",
        "submitter": result.submitter.replace("_", " "),
        "system": result.system,
        "round": result.round,
    }


def _markdown(names: Sequence[str], rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    yield f"| {' | '.join(names)} |"
    yield f"|{' --- |' * len(names)}"
    for row in rows:
        yield f"| {' | '.join(markdown_text(row[name]) for name in names)} |"


def _cell(value: object) -> object:
    return ("yes" if value else "") if isinstance(value, bool) else csv_cell(value)
