"""The tables of `pytest-mlperf limits`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

from pytest_mlperf.cli.limits_rows import Refuted, ResultRow, left_out, refuted, result_rows
from pytest_mlperf.cli.round import SHORT
from pytest_mlperf.core.roofline import GpuSpec, Limit, Seen, share_of_limit
from pytest_mlperf.core.roofline.bounds import Term, decode_rate, hardware, prefill_rate
from pytest_mlperf.core.roofline.precision import PRECISIONS, peak
from pytest_mlperf.core.roofline.work import Decode
from pytest_mlperf.core.units import rounded
from pytest_mlperf.reports.layout import Row, fold, paragraph, paragraphs, plural, table
from pytest_mlperf.rounds.claims import PAGES, ROUND, known_claims
from pytest_mlperf.rounds.work import WorkloadWork, find_work

FIGURES = tuple(
    own.name for own in fields(Seen) if own.name not in ("gpus", "precision", "techniques")
)
"""Figures of a run that `--set` gives."""

_SI = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1.0, ""))


def results_table(workload: str | None, columns: int) -> Iterator[str]:
    """Yield the official results with their limits, nearest first, and what they add up to.

    Args:
        workload: LoadGen's name; None: all.
        columns: Of the terminal.
    """
    rows = [row for row in result_rows() if workload in (None, _workload_of(row))]
    yield from fold(
        f"MLPerf Inference {ROUND}, official results on known GPUs: share of the speed of light, "
        "which is the dense peak at the GPU's fastest precision",
        columns,
    )
    yield ""
    names = ["workload", "run", "GPUs", "submitter", "value", "unit", "limit", "certain"]
    names += ["estimated"]
    left = ["workload", "run", "GPUs", "submitter", "unit"]
    spare = ["submitter", "unit"]
    yield from table(names, [_row(row) for row in rows], columns, left=left, spare=spare)
    yield ""
    yield from _summary(rows, columns)
    if workload is None:
        others = [f"{count} on {name}" for name, count in left_out().items()]
        yield from fold(f"not in the table: {', '.join(others)}", columns)


def _summary(rows: Sequence[ResultRow], columns: int) -> Iterator[str]:
    """Yield what the columns mean and what the rows add up to."""
    letters = ", ".join(f"{short} {name}" for name, short in SHORT.items())
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


def _workload_of(row: ResultRow) -> str | None:
    about = find_work(row.result.model)
    return about.name if about else None


def _row(row: ResultRow) -> Row:
    result, limit = row.result, row.limit
    certain = limit.certain
    if certain is not None and result.unit == "ms":
        certain *= 1e3
    return {
        "workload": result.model + ("*" if result.division == "open" else ""),
        "run": SHORT[result.scenario],
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


def claims_table(workload: str | None, columns: int) -> Iterator[str]:
    """Yield the printed figures that cannot be, each with its reasons.

    Args:
        workload: LoadGen's name; None: all.
        columns: Of the terminal.
    """
    yield from fold("printed figures that cannot be what they are printed as", columns)
    yield from paragraphs("", [f"{page}: {title}" for page, title in PAGES.items()], columns)
    yield ""
    found = refuted(claim for claim in known_claims() if workload in (None, claim.workload))
    names = ["line", "printed", "read as", "GPUs", "limit", "share %"]
    rows = [_claim_row(each) for each in found]
    left = ["line", "read as", "GPUs"]
    yield from table(names, rows, columns, left=left, spare=["read as"])
    yield ""
    for each in found:
        claim = each.claim
        reasons = "; ".join(each.reasons) or "nothing speaks against it"
        truth = f". In fact, {claim.truth}" if claim.truth else ""
        yield from paragraph(
            f"{claim.page} {claim.line}", f"{claim.says}: {reasons}{truth}", columns
        )
    yield ""
    flagged = sum(bool(each.reasons) for each in found)
    impossible = sum(each.limit.impossible for each in found)
    yield from fold(
        f"{flagged} of {plural(len(found), 'figure')} flagged, {impossible} of them beyond the "
        "certain limit at the highest clock",
        columns,
    )


def _claim_row(each: Refuted) -> Row:
    claim, limit = each.claim, each.limit
    certain = limit.certain
    precision = f" {claim.precision}" if claim.precision else ""
    return {
        "line": f"{claim.page} {claim.line}",
        "printed": claim.text,
        "read as": f"{claim.workload} {claim.unit}",
        "GPUs": f"{claim.gpus}x{claim.accelerator}{precision}",
        "limit": "" if certain is None else rounded(certain),
        "share %": _percent(limit.of_certain),
    }


def bound(
    accelerator: str, gpu: GpuSpec | None, about: WorkloadWork, seen: Seen, columns: int
) -> Iterator[str]:
    """Yield one limit with the numbers that it is made of.

    Args:
        accelerator: As asked for.
        gpu: What was found for it.
        about: The workload.
        seen: What is to be run.
        columns: Of the terminal.
    """
    metric = "tokens_per_second" if isinstance(about.work, Decode) else "throughput"
    unit = "tokens/s" if isinstance(about.work, Decode) else "samples/s"
    limit = share_of_limit(
        metric, None, accelerator=accelerator, gpu=gpu, work=about.work, seen=seen
    )
    asked = f"{about.name} on {seen.gpus}x{gpu.name if gpu else accelerator}"
    if limit.why_unknown or gpu is None:
        yield from fold(f"{asked}: {limit.why_unknown}", columns)
        return
    yield asked
    yield from paragraph("precision", _precision(gpu, seen), columns)
    yield from _level("certain", limit.certain, limit.term, unit, columns)
    yield from paragraph(
        "invalid",
        f"above {rounded(limit.ceiling or 0.0)} {unit}: the highest clock, a cache full of weights",
        columns,
    )
    if limit.estimated is None:
        yield from paragraph("estimated", limit.why_no_estimate or "", columns)
    else:
        yield from _level("estimated", limit.estimated, limit.estimated_term, unit, columns)
    yield from paragraph("binds", _binds(limit), columns)
    if isinstance(about.work, Decode):
        yield from _phases(gpu, about.work, seen, columns)
    yield from _figures(about, seen, columns)
    yield from paragraph("GPU", gpu.source, columns)
    yield from paragraph("workload", about.source, columns)


def _phases(gpu: GpuSpec, work: Decode, seen: Seen, columns: int) -> Iterator[str]:
    """Yield the limits of reading prompts and of decoding, each alone."""
    has = hardware(gpu, seen)
    if seen.input_tokens:
        rate = prefill_rate(work, has, length=seen.input_tokens)
        text = f"{rounded(rate)} tokens/s while only prompts of {seen.input_tokens:g} are read"
        yield from paragraph("prompts", text, columns)
    if seen.input_tokens and seen.output_tokens and seen.batch:
        context = seen.input_tokens + seen.output_tokens / 2
        rate = decode_rate(work, has, batch=seen.batch, context=context)
        text = (
            f"{rounded(rate)} tokens/s while only {plural(round(seen.batch), 'sequence')} of "
            f"{context:.4g} tokens decode in each copy of the model"
        )
        yield from paragraph("decoding", text, columns)


def _figures(about: WorkloadWork, seen: Seen, columns: int) -> Iterator[str]:
    """Yield the figures of the mean sample and of the run that the estimate is made from."""
    own = {name: getattr(seen, name) for name in FIGURES}
    given = [f"{name} {value}" for name, value in own.items() if value is not None]
    if given:
        typical = " (typical of the data set where not set)" if about.typical else ""
        yield from paragraph("figures", ", ".join(given) + typical, columns)


def _precision(gpu: GpuSpec, seen: Seen) -> str:
    name = seen.precision or "none said: the fastest"
    flops = peak(gpu, seen.precision) or 0.0
    text = f"{name}, {_scaled(flops, 'FLOP/s')} dense for each GPU"
    weights = seen.weights or seen.precision
    if weights:
        text += f", {PRECISIONS[weights].weight:.4g} B a weight"
    return text


def _level(
    name: str, rate: float | None, term: Term | None, unit: str, columns: int
) -> Iterator[str]:
    if rate is None or term is None:
        return
    kind = "FLOP" if term.resource == "compute" else "B"
    each = unit.removesuffix("s/s")
    text = (
        f"{rounded(rate)} {unit} = {_scaled(term.capacity, kind + '/s')} / "
        f"{_scaled(term.amount, kind)} for each {each}"
    )
    yield from paragraph(name, text, columns)


def _binds(limit: Limit) -> str:
    return {
        "compute": "compute: the matrix units are busy all the time",
        "memory": "memory: the weights are read all the time",
        None: "",
    }[limit.binds]


def _scaled(value: float, unit: str) -> str:
    for factor, letter in _SI:
        if value >= factor:
            return f"{value / factor:,.5g} {letter}{unit}"
    return f"{value:.5g} {unit}"
