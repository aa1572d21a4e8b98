"""Run `pytest-mlperf share`: print results as a share of the best official result."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.official.placing import best_system
from pytest_mlperf.addons.official.published_table import results_in, rounds_with_results
from pytest_mlperf.bench.official import Placing, compare_with_official
from pytest_mlperf.cli.compare import add_sides, side
from pytest_mlperf.cli.output import show, width
from pytest_mlperf.cli.stored_results import results_path
from pytest_mlperf.core.numbers import rounded
from pytest_mlperf.core.results import UNVERIFIED_LABEL
from pytest_mlperf.extension import nearest
from pytest_mlperf.reports.terminal.layout import paragraphs, table
from pytest_mlperf.rounds.published import OfficialResult, official_results

COMPARISON_NOTE = (
    "per GPU, compared with the best result of the closed division, by LoadGen, on an available "
    "system with the same kind of GPU. No verdict: nothing is judged here"
)

HELP = """\
Shows which share of the best official result each case reached, per GPU. A is
what `compare` takes: results, LIBRARY==VERSION or a git ref. Nothing is judged.

Exit 2 if no official result is comparable.

needs: one measurement; git for refs

examples:
  $ pytest-mlperf share .mlperf/runs/20261121-031500-ab12
      a session against the results of all rounds
  $ pytest-mlperf share vllm==0.11.0 --of v6.1
      all sessions of a version against one round
  $ pytest-mlperf share a.json --of rows.json
      against the output of `import mlperf --rows rows.json`
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    add_sides(parser, optional=True, a="measured results (default: newest session)")
    parser.add_argument(
        "--of", metavar="ROUND", help="a round, or a file with rows (default: all rounds)"
    )


def run(parsed: argparse.Namespace) -> int:
    """Print each case's share of the best official result; return 2 if none is comparable."""
    results = results_of(parsed.of)
    path = parsed.a or str(results_path(None, parsed.runs_dir))
    a = side(path, parsed.runs_dir, parsed.baselines)
    standing = [
        (
            case,
            "it used techniques of the open division"
            if one.division != "closed"
            else one.reason  # no runs, or a handicap
            or compare_with_official(
                one.case, one.identity, one.runs, searched=bool(one.find), results=results
            ),
        )
        for case, measured in a.cases.items()
        for one in measured
    ]
    source_names = parsed.of or ", ".join(rounds_with_results())
    show(lines(standing, a.name, source_names, a.notes, width()))
    if any(isinstance(placing, Placing) for _, placing in standing):
        return 0
    show(["no case is comparable with an official result"])
    return 2


def results_of(text: str | None) -> tuple[OfficialResult, ...]:
    """Return official results of a round, a file, or (for None) all rounds; else MlperfError."""
    rounds = rounds_with_results()
    if text is None or text in rounds:
        return official_results(text)
    if Path(text).is_file():
        return results_in(Path(text))
    raise MlperfError(
        f"--of {text!r}: neither a file nor a round with official results{nearest(text, rounds)}"
    )


def lines(
    standing: Sequence[tuple[str, Placing | str]],
    name: str,
    source_names: str,
    notes: Sequence[str],
    width: int,
) -> Iterator[str]:
    """Yield a table of each case's share of the best result, and why other cases have none."""
    yield from paragraphs("A", [name], width)
    yield from paragraphs("published", [source_names], width)
    like = [(case, placing) for case, placing in standing if isinstance(placing, Placing)]
    if like:
        rows = [_row(placing) for _, placing in like]
        left, spare = ["unit", "round", "submitter", "system"], ["system", "submitter"]
        head, *body = table(rows, width, left=left, spare=spare, indent="  ")
        yield from ("", head)
        for (case, _), text in zip(like, body, strict=True):
            yield from (case, text)
    yield ""
    lacking = [f"{case}: {reason}" for case, reason in standing if isinstance(reason, str)]
    yield from paragraphs("unlike", lacking, width)
    yield from paragraphs(
        "note", [*notes, *([COMPARISON_NOTE] if like else []), UNVERIFIED_LABEL], width
    )


def _row(placing: Placing) -> dict[str, str]:
    best = placing.best
    return {
        "A": rounded(placing.value),
        "best": rounded(placing.best_value),
        "share": f"{100 * placing.share:.3g} %",
        "unit": best.unit,
        "round": best.round,
        "submitter": best.submitter.replace("_", " "),
        "system": best_system(placing),
    }
