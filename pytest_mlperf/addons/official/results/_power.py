"""Compute the power of a submission from PTDaemon's samples, as the round's table reports it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.official.results._folders import ResultPlace
from pytest_mlperf.addons.official.results._logs import count_of, is_summary, queries_of
from pytest_mlperf.addons.official.results._reading import text_of
from pytest_mlperf.addons.official.results._rounds import since
from pytest_mlperf.extension import Scenario, plural
from pytest_mlperf.rounds import Round
from pytest_mlperf.rounds.published import PowerUnit
from pytest_mlperf.run.logs import CLOCK, Detail

POWER_FILE = "spl.txt"
"""Each line is "Time,<time>,Watts,<watts>,...", about one per second."""

SAMPLE_SECONDS, MAX_HOLE_SECONDS = 1.0, 5.0
"""Duration of a sample, and least silence of the meter that counts as a gap."""

MAX_SYSTEM_WATTS = 1e7


def power_of(
    at: ResultPlace, log: Detail, scenario: Scenario, rules: Round | None
) -> tuple[float, PowerUnit, str] | None:
    """Return the power of a result, its unit and a note; None if it was not measured.

    Offline, Server and Interactive: mean power in W. SingleStream and MultiStream: energy per query
    in mJ (mean power x duration / queries); per sample for MultiStream before v2.0. MultiStream
    inferred from SingleStream counts eight queries as one. The note states the covered part of the
    run if samples are missing. Returns None also if only a summary log exists.
    """
    path = at.runs[0] / POWER_FILE
    if not path.exists() or is_summary(log):
        return None
    begin_s, end_s = log.window_s
    samples = _samples(path, text_of(path, at.root))
    timed = sorted((at_s, w) for at_s, w in samples if begin_s < at_s < end_s)
    # Some meters report negative power at times; checkers before v3.1 include it.
    watts = [w for _, w in timed if w > 0 or not since(rules, "v3.1")]
    if not watts or fmean(watts) <= 0:
        raise MlperfError(
            f"{path}: no power samples above 0 W between power_begin and power_end of LoadGen's log"
        )
    mean_w, holes = fmean(watts), _holes([at_s for at_s, _ in timed], begin_s, end_s)
    note = f"{path}: {holes}" if holes else ""
    if not scenario.answers_one_at_a_time:
        return mean_w, "W", note
    energy_mj = mean_w * (end_s - begin_s) * 1e3
    return energy_mj / _shares(log, scenario), "mJ", note


def _shares(log: Detail, scenario: Scenario) -> float:
    queries = queries_of(log)
    if not queries:
        raise MlperfError(f"{log.path}: no result_query_count, which energy per query needs")
    if scenario == Scenario.MULTI_STREAM != log.values.get("effective_scenario"):
        return queries / 8
    legacy = scenario == Scenario.MULTI_STREAM and "result_query_count" not in log.values
    return queries * (count_of(log, "generated_samples_per_query") if legacy else 1)


def _holes(times_s: Sequence[float], begin_s: float, end_s: float) -> str:
    """Return "N samples cover X of Y s" if power samples are missing, else ""."""
    ends_s = [begin_s, *(at_s + SAMPLE_SECONDS for at_s in times_s)]
    gaps_s = [later - earlier for earlier, later in zip(ends_s, (*times_s, end_s), strict=True)]
    silent_s = [gap for gap in gaps_s if gap > MAX_HOLE_SECONDS]
    whole_s = end_s - begin_s
    covered_s = max(0.0, whole_s - sum(silent_s))
    cover = f"{plural(len(times_s), 'power sample')} cover{'s' if len(times_s) == 1 else ''}"
    return f"{cover} only {covered_s:,.0f} of {whole_s:,.0f} s" if silent_s else ""


def _samples(path: Path, content: str) -> Iterator[tuple[float, float]]:
    """Yield the time [s since 1970] and the power [W] of each sample."""
    for number, line in enumerate(content.splitlines(), start=1):
        cells = line.split(",")
        if cells == [""]:
            continue
        try:
            moment = dt.datetime.strptime(cells[1], CLOCK).replace(tzinfo=dt.UTC)
            watts = float(cells[3])
            if not abs(watts) <= MAX_SYSTEM_WATTS:
                raise ValueError
        except (ValueError, IndexError):
            raise MlperfError(f"{path}:{number}: not a PTDaemon sample") from None
        yield moment.timestamp(), watts
