"""Run `pytest-mlperf limits`: compare official results with the highest possible speeds."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pytest_mlperf import MlperfError
from pytest_mlperf.cli.output import show, width
from pytest_mlperf.cli.round import SCENARIO_ABBREVIATIONS
from pytest_mlperf.core.case import TECHNIQUES
from pytest_mlperf.core.metrics import gated_metrics
from pytest_mlperf.core.numbers import plural, rounded
from pytest_mlperf.core.roofline import Limit, share_of_limit
from pytest_mlperf.core.roofline.bounds import Term, decode_rate, hardware, prefill_rate
from pytest_mlperf.core.roofline.gpu import PRECISIONS, GpuSpec, peak
from pytest_mlperf.core.roofline.work import Circumstances, Decode
from pytest_mlperf.core.untrusted_text import nearest
from pytest_mlperf.hardware.specs import find_gpu, known_gpus
from pytest_mlperf.reports.terminal.layout import Row, fold, paragraph, table
from pytest_mlperf.rounds.published import SECONDS, OfficialResult, official_results
from pytest_mlperf.rounds.work import WorkloadWork, find_work, known_work

ROUND = "v4.1"
"""Round whose results are listed."""

HELP = """\
Without options: every official result of MLPerf Inference v4.1 on a known GPU
with its share of the speed of light, nearest first. With --gpu and --workload:
one limit, and the numbers that it is made of. The certain limit counts only
what cannot be less; the estimated one what the mean sample of the data set
needs.

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
        help="a figure of the run: " + ", ".join(sorted(FIGURES)),
    )


def run(parsed: argparse.Namespace) -> int:
    """Print the table of results, or one limit."""
    about = None if parsed.workload is None else find_work(parsed.workload)
    if parsed.workload is not None and about is None:
        near = nearest(parsed.workload, known_work())
        raise MlperfError(f"nobody counted the work of {parsed.workload!r}{near}")
    if parsed.gpu is not None:
        if about is None:
            raise MlperfError("--gpu asks for one limit: say --workload too")
        show(_single_limit(parsed, about, width()))
        return 0
    if parsed.precision or parsed.count != 1 or parsed.technique or parsed.figures:
        raise MlperfError("--precision, --count, --technique and --set are of one limit: say --gpu")
    show(results_table(about.name if about else None, width()))
    return 0


def _single_limit(parsed: argparse.Namespace, about: WorkloadWork, columns: int) -> Iterable[str]:
    gpu = find_gpu(parsed.gpu)
    for name in parsed.technique:
        if name not in TECHNIQUES:
            raise MlperfError(
                f"--technique {name}: there is none of this name{nearest(name, TECHNIQUES)}; "
                f"known: {', '.join(TECHNIQUES)}"
            )
    try:
        figures = {**about.typical, **_figures(parsed.figures)}
        seen = Circumstances(
            gpus=parsed.count,
            precision=parsed.precision,
            techniques=tuple(parsed.technique),
            **figures,
        )
    except ValueError as defect:
        raise MlperfError(f"{defect}") from None
    return bound(parsed.gpu, gpu, about, seen, columns)


def _figures(texts: Iterable[str]) -> dict[str, Any]:
    """Return the values of `--set`: formats are words, all others numbers."""
    figures: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if name not in FIGURES or not equals:
            raise MlperfError(f"--set {text}: must be NAME=NUMBER{nearest(name, sorted(FIGURES))}")
        if name in ("weights", "kv"):
            figures[name] = value
            continue
        try:
            figures[name] = float(value)
        except ValueError:
            raise MlperfError(f"--set {text}: {value!r} is no number") from None
    return figures


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """Official result with the limit of its accelerator."""

    result: OfficialResult
    workload: str
    gpu: GpuSpec
    limit: Limit


def result_rows(name: str = ROUND) -> tuple[list[ResultRow], Mapping[str, int]]:
    """Return a round's results on known GPUs, nearest first, and counts of the others."""
    rows: list[ResultRow] = []
    others: Counter[str] = Counter()
    for result in official_results(name):
        about = find_work(result.model)
        gpu = find_gpu(result.accelerator) if result.accelerator else None
        if about is None:
            others["other models"] += 1
        elif gpu is None:
            others[result.accelerator or "CPUs"] += 1
        else:
            limit = _limit(result, about, gpu)
            rows.append(ResultRow(result=result, workload=about.name, gpu=gpu, limit=limit))
    return sorted(rows, key=lambda row: -(row.limit.of_certain or 0.0)), others


def _limit(result: OfficialResult, about: WorkloadWork, gpu: GpuSpec) -> Limit:
    """Return the limit of a result, at the GPU's fastest precision: its own is not published."""
    figures: dict[str, Any] = dict(about.typical)
    if result.tokens_per_sample:
        figures["output_tokens"] = result.tokens_per_sample
    metric = "tokens_per_second" if result.unit == "tokens/s" else "throughput"
    value = result.value
    if result.is_latency:
        metric, value = gated_metrics(result.scenario)[0], result.value * SECONDS[result.unit]
    return share_of_limit(
        metric,
        value,
        accelerator=result.accelerator,
        gpu=gpu,
        work=about.work,
        seen=Circumstances(gpus=result.count, techniques=result.techniques, **figures),
    )


FIGURES = tuple(
    own.name for own in fields(Circumstances) if own.name not in ("gpus", "precision", "techniques")
)
"""Values of a run that `--set` accepts."""

BINDS = {
    "compute": "compute: the matrix units are busy all the time",
    "memory": "memory: the weights are read all the time",
    None: "",
}

_SI = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1.0, ""))


def results_table(workload: str | None, columns: int) -> Iterator[str]:
    """Yield the official results with their limits, nearest first, and a summary."""
    every, others = result_rows()
    rows = [row for row in every if workload in (None, row.workload)]
    yield from fold(
        f"MLPerf Inference {ROUND}, official results on known GPUs: share of the speed of light, "
        "which is the dense peak at the GPU's fastest precision",
        columns,
    )
    yield ""
    left = ["workload", "run", "GPUs", "submitter", "unit"]
    names = [*left[:4], "value", "unit", "limit", "certain", "estimated"]
    cells = [_row(row) for row in rows]
    yield from table(names, cells, columns, left=left, spare=["submitter", "unit"])
    yield ""
    yield from _summary(rows, columns)
    if workload is None:
        counts = [f"{count} on {name}" for name, count in others.items()]
        yield from fold(f"not in the table: {', '.join(counts)}", columns)


def _summary(rows: Sequence[ResultRow], columns: int) -> Iterator[str]:
    letters = ", ".join(f"{short} {name}" for name, short in SCENARIO_ABBREVIATIONS.items())
    yield from fold(
        "limit: the certain one, in the value's unit (tokens/s for language models, ms for SS and "
        "MS, else samples/s); certain, estimated: % of either limit; * open division; run: "
        f"{letters}",
        columns,
    )
    limited = [row for row in rows if row.limit.certain is not None]
    below = [row for row in limited if (row.limit.of_certain or 0) < 1]
    yield from fold(
        f"{len(below)} of {plural(len(limited), 'result')} lie below the certain limit, "
        f"{sum(row.limit.near for row in limited)} above 90 % of the estimated one",
        columns,
    )
    for row in rows:
        if row.limit.why_unknown:
            text = f"no limit for {row.result.system}, {row.result.model}: {row.limit.why_unknown}"
            yield from fold(text, columns)


def _row(row: ResultRow) -> Row:
    result, limit = row.result, row.limit
    certain = limit.certain
    if certain is not None:
        certain /= SECONDS.get(result.unit, 1.0)
    return {
        "workload": result.model + ("*" if result.division == "open" else ""),
        "run": SCENARIO_ABBREVIATIONS[result.scenario],
        "GPUs": f"{result.count}x{row.gpu.name}",
        "submitter": result.submitter.replace("_", " "),
        "value": f"{result.value:,.6g}",
        "unit": result.unit,
        "limit": "" if certain is None else rounded(certain),
        "certain": _percent(limit.of_certain),
        "estimated": _percent(limit.of_estimated),
    }


def _percent(share: float | None) -> str:
    if share is None:
        return "-"
    return f"{100 * share:.1f}" if share < 10 else f"{100 * share:,.0f}"


def bound(
    accelerator: str, gpu: GpuSpec | None, about: WorkloadWork, seen: Circumstances, columns: int
) -> Iterator[str]:
    """Yield one limit with its derivation."""
    decodes = isinstance(about.work, Decode)
    metric = "tokens_per_second" if decodes else "throughput"
    limit = share_of_limit(
        metric, None, accelerator=accelerator, gpu=gpu, work=about.work, seen=seen
    )
    title = f"{about.name} on {seen.gpus}x{gpu.name if gpu else accelerator}"
    if limit.why_unknown or gpu is None:
        yield from fold(f"{title}: {limit.why_unknown}", columns)
        return
    yield title
    for label, text in _made_of(limit, gpu, about, seen, "tokens/s" if decodes else "samples/s"):
        yield from paragraph(label, text, columns)


def _made_of(
    limit: Limit, gpu: GpuSpec, about: WorkloadWork, seen: Circumstances, unit: str
) -> Iterator[tuple[str, str]]:
    yield "precision", _precision(gpu, seen)
    if limit.certain is not None and limit.term:
        yield "certain", _level(limit.certain, limit.term, unit)
    ceiling = rounded(limit.ceiling or 0.0)
    yield "invalid", f"above {ceiling} {unit}: the highest clock, a cache full of weights"
    if limit.estimated is None:
        yield "estimated", limit.why_no_estimate or ""
    elif limit.estimated_term:
        yield "estimated", _level(limit.estimated, limit.estimated_term, unit)
    yield "binds", BINDS[limit.binds]
    if isinstance(about.work, Decode):
        yield from _phases(gpu, about.work, seen)
    figures = {name: getattr(seen, name) for name in FIGURES}
    texts = [f"{name} {value}" for name, value in figures.items() if value is not None]
    if texts:
        typical = " (typical of the data set where not set)" if about.typical else ""
        yield "figures", ", ".join(texts) + typical
    yield "GPU", gpu.source
    yield "workload", about.source


def _phases(gpu: GpuSpec, work: Decode, seen: Circumstances) -> Iterator[tuple[str, str]]:
    has = hardware(gpu, seen)
    if seen.input_tokens:
        rate = prefill_rate(work, has, length=seen.input_tokens)
        text = f"{rounded(rate)} tokens/s while only prompts of {seen.input_tokens:g} are read"
        yield "prompts", text
    if seen.input_tokens and seen.output_tokens and seen.batch:
        context = seen.input_tokens + seen.output_tokens / 2
        rate = decode_rate(work, has, batch=seen.batch, context=context)
        yield (
            "decoding",
            f"{rounded(rate)} tokens/s while only {plural(round(seen.batch), 'sequence')} of "
            f"{context:.4g} tokens decode in each copy of the model",
        )


def _precision(gpu: GpuSpec, seen: Circumstances) -> str:
    name = seen.precision or "none said: the fastest"
    text = f"{name}, {_scaled(peak(gpu, seen.precision) or 0.0, 'FLOP/s')} dense for each GPU"
    weights = seen.weights or seen.precision
    return text + (f", {PRECISIONS[weights].weight:.4g} B a weight" if weights else "")


def _level(rate: float, term: Term, unit: str) -> str:
    kind = "FLOP" if term.resource == "compute" else "B"
    capacity, amount = _scaled(term.capacity, kind + "/s"), _scaled(term.amount, kind)
    return f"{rounded(rate)} {unit} = {capacity} / {amount} for each {unit.removesuffix('s/s')}"


def _scaled(value: float, unit: str) -> str:
    for factor, letter in _SI:
        if value >= factor:
            return f"{value / factor:,.5g} {letter}{unit}"
    return f"{value:.5g} {unit}"
