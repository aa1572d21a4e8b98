"""Run `pytest-mlperf limits`: compare official results with the hardware limits (roofline)."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.official.commands.round import SCENARIO_ABBREVIATIONS
from pytest_mlperf.cli.output import show, width
from pytest_mlperf.core.case import TECHNIQUES
from pytest_mlperf.core.metrics import gated_metrics
from pytest_mlperf.core.numbers import rounded
from pytest_mlperf.extension import nearest, plural, sentence
from pytest_mlperf.hardware.specs import known_gpus
from pytest_mlperf.reports.terminal.layout import fold, paragraphs, table
from pytest_mlperf.rounds.published import OfficialResult, official_results
from pytest_mlperf.rounds.work import work_named
from pytest_mlperf.run.roofline_share import WorkloadLimit

ROUND = "v4.1"
"""Round whose results are listed."""

HELP = """\
Without options: every official result of MLPerf Inference v4.1 on a known GPU
with its share of the roofline, nearest first. With --gpu and --workload:
one limit, and how it is computed. The certain limit counts only the work that
no implementation can avoid; the estimated limit counts the work that the mean
sample of the data set needs.

needs: nothing; the results come with the package

examples:
  $ pytest-mlperf limits
      the official results
  $ pytest-mlperf limits --workload bert
      those of one workload
  $ pytest-mlperf limits --gpu H200 --workload bert --precision int8 --count 8
      one limit
  $ pytest-mlperf limits --gpu L4 --workload gptj --precision fp8 --set batch=1
      one sequence at a time: how fast the weights can be read
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("--gpu", help=f"a class or a kind: {', '.join(known_gpus())}")
    parser.add_argument("--workload", help='by any name: "bert", "llama2-70b-99.9"')
    parser.add_argument("--precision", help="default: the GPU's fastest")
    parser.add_argument("--count", type=int, default=1, metavar="N", help="GPUs; default: 1")
    parser.add_argument(
        "--technique",
        action="append",
        default=[],
        metavar="NAME",
        help="of the open division: " + ", ".join(TECHNIQUES),
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="figures",
        metavar="NAME=NUMBER",
        help="set a figure of the run, one of " + ", ".join(sorted(WorkloadLimit.FIGURES)),
    )


def run(parsed: argparse.Namespace) -> int:
    """Print the table of official results, or the limit of one workload."""
    about = None if parsed.workload is None else work_named(parsed.workload)
    if parsed.gpu is not None:
        if about is None:
            raise MlperfError("--gpu needs --workload, which names the limit to compute")
        show(_single_limit(parsed, width()))
        return 0
    if parsed.precision or parsed.count != 1 or parsed.technique or parsed.figures:
        raise MlperfError("--precision, --count, --technique and --set need --gpu and --workload")
    show(results_table(about.name if about else None, width()))
    return 0


def _single_limit(parsed: argparse.Namespace, columns: int) -> Iterable[str]:
    for name in parsed.technique:
        if name not in TECHNIQUES:
            raise MlperfError(
                f"--technique {name}: unknown technique{nearest(name, TECHNIQUES)}; known: "
                f"{', '.join(TECHNIQUES)}"
            )
    try:
        bound = WorkloadLimit.of(
            parsed.workload,
            parsed.gpu,
            gpus=parsed.count,
            precision=parsed.precision,
            techniques=parsed.technique,
            figures=_figures(parsed.figures),
        )
    except ValueError as defect:
        raise MlperfError(f"{defect}") from None
    return _bound(parsed.gpu, bound, columns) if bound else ()


def _figures(texts: Iterable[str]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if name not in WorkloadLimit.FIGURES or not equals:
            raise MlperfError(
                f"--set {text}: must be NAME=NUMBER{nearest(name, sorted(WorkloadLimit.FIGURES))}; "
                f"names: {', '.join(sorted(WorkloadLimit.FIGURES))}"
            )
        if name in ("weights", "kv"):
            figures[name] = value
            continue
        try:
            figures[name] = float(value)
        except ValueError:
            raise MlperfError(f"--set {text}: {value!r} is not a number") from None
    return figures


class Limited(NamedTuple):
    """Hold an official result and the roofline limit of its workload on its hardware."""

    result: OfficialResult
    bound: WorkloadLimit


def result_rows(name: str = ROUND) -> tuple[list[Limited], Mapping[str, int]]:
    """Return a round's results, highest roofline share first, and counts of the others by cause."""
    rows: list[Limited] = []
    others: Counter[str] = Counter()
    for result in official_results(name):
        bound = _limit(result)
        if bound is None:
            others["other models"] += 1
        elif bound.gpu is None:
            others[result.accelerator or "CPUs"] += 1
        else:
            rows.append(Limited(result, bound))
    return sorted(rows, key=lambda row: -(row.bound.limit.certain_share or 0.0)), others


def _limit(result: OfficialResult) -> WorkloadLimit | None:
    metric = "tokens_per_second" if result.unit == "tokens/s" else "throughput"
    value = result.value
    if result.is_latency:
        metric, value = gated_metrics(result.scenario)[0], result.value * result.unit_seconds
    length = result.tokens_per_sample
    return WorkloadLimit.of(
        result.model,
        result.accelerator,
        metric=metric,
        value=value,
        gpus=result.count or 1,
        techniques=result.techniques,
        figures={"output_tokens": length} if length else {},
    )


BINDS = {
    "compute": "compute: the matrix units are busy all the time",
    "memory": "memory: the weights are read all the time",
    None: "",
}

_SI = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1.0, ""))


def results_table(workload: str | None, columns: int) -> Iterator[str]:
    """Yield a table of official results, the one nearest to its limit first, and a summary."""
    every, others = result_rows()
    rows = [row for row in every if workload in (None, row.bound.about.name)]
    yield from fold(
        f"MLPerf Inference {ROUND}, official results on known GPUs: share of the roofline, "
        "which is the dense peak at the GPU's fastest precision",
        columns,
    )
    yield ""
    left = ["workload", "run", "GPUs", "submitter", "unit"]
    cells = [_row(*row) for row in rows]
    yield from table(cells, columns, left=left, spare=["submitter", "unit"])
    yield ""
    yield from _summary(rows, columns)
    if workload is None:
        counts = [f"{count} on {name}" for name, count in others.items()]
        yield from fold(f"not in the table: {', '.join(counts)}", columns)


def _summary(rows: Sequence[Limited], columns: int) -> Iterator[str]:
    letters = ", ".join(f"{short} {name}" for name, short in SCENARIO_ABBREVIATIONS.items())
    yield from fold(
        "limit: the certain one, in the value's unit (tokens/s for language models, ms for SS and "
        "MS, else samples/s); certain, estimated: % of either limit; * open division; run: "
        f"{letters}",
        columns,
    )
    limits = [bound.limit for _, bound in rows]
    limited = [limit for limit in limits if limit.certain is not None]
    below = [limit for limit in limited if (limit.certain_share or 0) < 1]
    yield from fold(
        f"{len(below)} of {plural(len(limited), 'result')} lie below the certain limit, "
        f"{sum(limit.near for limit in limited)} above 90 % of the estimated one",
        columns,
    )
    for result, bound in rows:
        if reason := sentence(bound.limit.why_unknown or ""):
            yield from fold(f"no limit for {result.system}, {result.model}: {reason}", columns)


def _row(result: OfficialResult, bound: WorkloadLimit) -> dict[str, str]:
    limit = bound.limit
    return {
        "workload": result.model + ("*" if result.division == "open" else ""),
        "run": SCENARIO_ABBREVIATIONS[result.scenario],
        "GPUs": f"{result.count}x{bound.gpu.name if bound.gpu else ''}",
        "submitter": result.submitter.replace("_", " "),
        "value": f"{result.value:,.6g}",
        "unit": result.unit,
        "limit": "" if limit.certain is None else rounded(limit.certain / result.unit_seconds),
        "certain": _percent(limit.certain_share),
        "estimated": _percent(limit.estimated_share),
    }


def _percent(share: float | None) -> str:
    if share is None:
        return "-"
    return f"{100 * share:.1f}" if share < 10 else f"{100 * share:,.0f}"


def _bound(accelerator: str, bound: WorkloadLimit, columns: int) -> Iterator[str]:
    gpu, limit = bound.gpu, bound.limit
    title = f"{bound.about.name} on {bound.seen.gpus}x{gpu.name if gpu else accelerator}"
    if limit.why_unknown or gpu is None:
        yield from fold(f"{title}: {sentence(limit.why_unknown or '')}", columns)
        return
    yield title
    unit = "tokens/s" if limit.metric == "tokens_per_second" else "samples/s"
    for label, text in _made_of(bound, unit):
        yield from paragraphs(label, [text], columns)
    yield from paragraphs("GPU", [gpu.source], columns)
    yield from paragraphs("workload", [bound.about.source], columns)


def _made_of(bound: WorkloadLimit, unit: str) -> Iterator[tuple[str, str]]:
    limit, seen = bound.limit, bound.seen
    yield "precision", _precision(bound)
    if limit.certain is not None and limit.term:
        term = limit.term
        yield "certain", _level(limit.certain, term.resource, term.capacity, term.amount, unit)
    ceiling = rounded(limit.ceiling or 0.0)
    yield "invalid", f"above {ceiling} {unit} (highest clock, and weights in the cache)"
    if limit.estimated is None:
        yield "estimated", sentence(limit.why_no_estimate or "")
    elif best := limit.estimated_term:
        yield "estimated", _level(limit.estimated, best.resource, best.capacity, best.amount, unit)
    yield "bound by", BINDS[limit.binds]
    if (rate := bound.prompt_rate) is not None:
        text = f"{rounded(rate)} tokens/s in prefill, with prompts of {seen.input_tokens:g} tokens"
        yield "prompts", text
    if (rate := bound.decode_rate) is not None:
        yield (
            "decoding",
            f"{rounded(rate)} tokens/s with {plural(round(seen.batch or 0), 'sequence')} of "
            f"{bound.decode_context:.4g} tokens in each copy of the model",
        )
    figures = {name: getattr(seen, name) for name in WorkloadLimit.FIGURES}
    texts = [f"{name} {value}" for name, value in figures.items() if value is not None]
    if texts:
        typical = " (typical of the data set unless you --set them)" if bound.about.typical else ""
        yield "figures", ", ".join(texts) + typical


def _precision(bound: WorkloadLimit) -> str:
    name = bound.seen.precision or "not set: the fastest"
    text = f"{name}, {_scaled(bound.peak, 'FLOP/s')} dense for each GPU"
    weight = bound.weight_bytes
    return text + (f", {weight:.4g} B per weight" if weight else "")


def _level(rate: float, resource: str, capacity: float, amount: float, unit: str) -> str:
    kind = "FLOP" if resource == "compute" else "B"
    quotient = f"{_scaled(capacity, kind + '/s')} / {_scaled(amount, kind)}"
    return f"{rounded(rate)} {unit} = {quotient} for each {unit.removesuffix('s/s')}"


def _scaled(value: float, unit: str) -> str:
    for factor, letter in _SI:
        if value >= factor:
            return f"{value / factor:,.5g} {letter}{unit}"
    return f"{value:.5g} {unit}"
