"""`compare A --published`: what share of the best official results a side reached; no verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_mlperf.bench.official import Placing, Unplaced, placed
from pytest_mlperf.cli.measured import Measured
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.numbers import rounded
from pytest_mlperf.core.results import UNVERIFIED_LABEL
from pytest_mlperf.core.untrusted_text import nearest
from pytest_mlperf.reports.terminal.layout import Row, paragraph, paragraphs, relative, table
from pytest_mlperf.rounds.published import (
    OfficialResult,
    official_results,
    results_in,
    rounds_with_results,
)

ALL_ROUNDS = "all"
COLUMNS = ("A", "best", "share", "unit", "round", "submitter", "system")

COMPARISON_NOTE = (
    "of one GPU; beside the best result of the closed division, by LoadGen, on an available system "
    "with the same kind of GPU. No verdict: nothing is judged here"
)


@dataclass(frozen=True, kw_only=True)
class PlacedCase:
    """A case, and where it stands among the results, or why nowhere."""

    case: str
    placing: Placing | Unplaced


def results_of(text: str) -> tuple[OfficialResult, ...]:
    """Return the results of a round, of every round, or of a file; all else is an MlperfError."""
    if text == ALL_ROUNDS:
        return official_results()
    rounds = rounds_with_results()
    if text in rounds:
        return official_results(text)
    if Path(text).is_file():
        return results_in(Path(text))
    raise MlperfError(
        f"--published {text!r}: no file, and no round that has official results"
        f"{nearest(text, rounds)}"
    )


def places(
    cases: Mapping[str, Sequence[Measured]], results: Sequence[OfficialResult]
) -> list[PlacedCase]:
    """Return where each case stands, in the order of the cases."""
    return [
        PlacedCase(case=case, placing=_placed(one, results))
        for case, measured in cases.items()
        for one in measured
    ]


def _placed(one: Measured, results: Sequence[OfficialResult]) -> Placing | Unplaced:
    if one.division != "closed":
        return Unplaced(reason="it used techniques of the open division")
    if one.reason:  # it has no runs, or they were slowed on purpose
        return Unplaced(reason=one.reason)
    return placed(one.case, one.identity, one.runs, searched=bool(one.find), results=results)


def lines(
    standing: Sequence[PlacedCase],
    name: str,
    asked: str,
    notes: Sequence[str],
    width: int,
) -> Iterator[str]:
    """Yield a table of the cases of a side that stand somewhere, and why the others do not."""
    yield from paragraph("A", name, width)
    yield from paragraph("published", _shown(asked), width)
    like = [(one.case, one.placing) for one in standing if isinstance(one.placing, Placing)]
    if like:
        rows = [_row(placing) for _, placing in like]
        head, *body = table(
            COLUMNS,
            rows,
            width - 2,
            left=["unit", "round", "submitter", "system"],
            spare=["system", "submitter"],
        )
        yield from ("", f"  {head}")
        for (case, _), text in zip(like, body, strict=True):
            yield from (case, f"  {text}")
    yield ""
    lacking = [
        f"{one.case}: {one.placing.reason}" for one in standing if isinstance(one.placing, Unplaced)
    ]
    yield from paragraphs("unlike", lacking, width)
    yield from paragraphs(
        "note", [*notes, *([COMPARISON_NOTE] if like else []), UNVERIFIED_LABEL], width
    )


def _shown(asked: str) -> str:
    if asked == ALL_ROUNDS:
        return ", ".join(rounds_with_results())
    return asked if asked in rounds_with_results() else str(relative(Path(asked)))


def _row(placing: Placing) -> Row:
    best = placing.best
    return {
        "A": rounded(placing.value),
        "best": rounded(placing.best_value),
        "share": f"{100 * placing.share:.3g} %",
        "unit": best.unit,
        "round": best.round,
        "submitter": best.submitter.replace("_", " "),
        "system": placing.source,
    }
