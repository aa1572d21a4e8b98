"""What a baseline keeps of runs: outliers are replaced, first runs that differ do not count."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.rulings.screening import first_run_effect, outliers, screened
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.judge.rule_r import RuleR, Value, log_scale
from tests.core.made import make_baseline_run, make_record, make_run

RULE = RuleR()

FARTHEST = 0.021024815373475104
"""The logarithmic distance at which one of eight equal runs is an outlier: s·√(8/7)·t(1 %/16, 10),
s² = 4·0.007²/10, by scipy."""

QUIET = (100.0, 100.3, 99.8, 100.1, 99.7, 100.2, 99.9, 100.0)


def values(*numbers: float, session: str = "a", lost: float = 0.0) -> list[Value]:
    return [Value(value=number, session=session, lost=lost) for number in numbers]


def odd(
    runs: Sequence[Value],
    kept: Sequence[Value] = (),
    direction: Direction = Direction.HIGHER,
) -> list[int]:
    return sorted(outliers(runs, kept, log_scale(direction), RULE))


def effect(
    runs: Sequence[Value], direction: Direction = Direction.HIGHER, p: float = 0.01
) -> float | None:
    return first_run_effect(runs, log_scale(direction), RULE, p)


def test_a_run_that_does_not_belong_to_the_others_is_named() -> None:
    """Also one on the fast side; below three runs there is no decision."""
    for share, expected in ((0.999, []), (-0.999, []), (1.001, [5]), (-1.001, [5])):
        sample = values(*[100.0] * 8)
        sample[5] = replace(sample[5], value=100 * math.exp(share * FARTHEST))
        assert odd(sample) == expected
    ordinary: tuple[list[Value], ...] = (values(*QUIET), values(100, 50), values(3), [])
    assert [odd(sample) for sample in ordinary] == [[]] * 4


def test_outliers_do_not_hide_each_other_and_are_few() -> None:
    """Where more than a quarter lie apart, the machine varies that much."""
    strays = (92.0, 108.0, 92.4, 107.0, 91.8, 92.1, 108.3, 91.7)
    for count, count_found in ((1, 1), (2, 2), (3, 0), (4, 0), (7, 0), (8, 0)):
        assert odd(values(*QUIET, *strays[:count])) == [*range(8, 8 + count_found)]
    for sample, few in (((1, 100, 100.1, 50, 100), []), ((1, 100, 100.1, 99.9, 100), [0])):
        assert odd(values(*sample)) == few


def test_a_session_that_differs_as_a_whole_has_no_outlier() -> None:
    """Two runs that lie apart are decided by a third one."""
    kept = [*values(*QUIET), *values(100.1, 99.9, session="b")]

    def outliers(*numbers: float) -> list[int]:
        return odd(values(*numbers, session="c"), kept)

    assert outliers(95.0, 95.1) == outliers(105.0, 105.3, 104.9) == []
    assert len(outliers(95.0, 100.0)) == 1
    assert outliers(95.0, 100.0, 100.2) == [0]
    assert outliers(95.0, 100.0, 95.3) == [1]


def test_deviations_explained_by_load_are_neither_outliers_nor_effects() -> None:
    for value, lost, expected in ((80, 0.0, [8]), (80, 0.3, []), (80, 0.1, [8]), (130, 0.5, [8])):
        sample = [*values(*QUIET), *values(value, lost=lost)]
        assert odd(sample) == expected, (value, lost)
    loaded = values(*(0.8 * number for number in QUIET), lost=0.3)
    assert odd([*loaded, *values(100)]) == []
    times, slower = values(*(0.001 * number for number in QUIET)), values(0.13, lost=0.3)
    assert odd([*times, *slower], direction=Direction.LOWER) == []

    assert effect([*values(80), *values(*QUIET)]) is not None
    assert effect([*values(80, lost=0.3), *values(*QUIET)]) is None
    assert effect([*values(100), *loaded]) is None


def test_first_runs_are_compared_with_the_later_ones_of_their_sessions() -> None:
    """By hand: differences of -3, -2.8, -3.2 and -3 % are t = 36.7 with 3 degrees of freedom."""
    pairs = [
        values(100 * math.exp(-d), 100, session=str(n))
        for n, d in enumerate((0.03, 0.028, 0.032, 0.03))
    ]
    runs = [run for pair in pairs for run in pair]

    for p, proven in ((6e-5, True), (4e-5, False)):
        assert (effect(runs, p=p) is not None) == proven
    assert math.isclose(effect(runs) or 0.0, -0.03)
    assert math.isclose(effect(runs, direction=Direction.LOWER) or 0, 0.03)
    assert effect(runs[:2]) is None
    assert effect(runs[::2]) is None
    mixed = [values(100 + d, 100, session=str(d))[i] for d in (-3, 3, -2.9, 3.1) for i in (0, 1)]
    assert effect(mixed) is None


def runs_of(numbers: Sequence[float], metric: str = "throughput", **fields: Any) -> list[Run]:
    return [make_run(metrics={metric: number}, **fields) for number in numbers]


def kept(runs: Sequence[Run]) -> list[float]:
    return [next(iter(run.metrics.values())) for run in runs]


LIMITS = {"throughput": 0.03}


def test_an_outlier_is_reported_with_its_number_and_value() -> None:
    screening = screened(runs_of([*QUIET[:3], 92.0, *QUIET[3:]]), LIMITS, RULE)

    assert kept(screening.runs) == [*QUIET]
    value = Note.of("value", metric="throughput", value=92.0)
    assert screening.notes == (Note.of("outlier", run=4, of=9, value=value),)
    assert not screening.skips_first_run


def test_only_gated_metrics_make_a_run_an_outlier() -> None:
    """A figure without a say keeps no run from being recorded."""
    limits = {"latency_p50": 0.1, "latency_p99": 0.1}
    for queries, count in ((10_000, 1), (999, 0)):
        measured = [
            make_run(metrics={"latency_p50": 0.02, "latency_p99": 0.03}, queries=queries)
            for _ in range(8)
        ]
        measured[2] = replace(measured[2], metrics={"latency_p50": 0.02, "latency_p99": 0.3})
        notes = screened(measured, limits, RULE).notes
        assert len(notes) == count
        value = Note.of("value", metric="latency_p99", value=0.3)
        assert all(note == Note.of("outlier", run=3, of=8, value=value) for note in notes)


def test_an_unlike_first_run_of_the_only_session_does_not_count() -> None:
    """Faster or slower; it may be an outlier or not."""
    for first, share in ((97.0, -0.03), (103.0, 0.03), (90.0, -0.1)):
        screening = screened(runs_of([first, *QUIET]), LIMITS, RULE)
        assert kept(screening.runs) == [*QUIET]
        assert screening.skips_first_run
        (note,) = screening.notes
        assert (note.key, note.values["metric"]) == ("first_run_differs", "throughput")
        assert note.values["change"] == pytest.approx(share, abs=5e-4)
    noisy = [85.0, 100.0, 103.0, 97.0, 104.0, 96.0, 101.0, 99.0]
    assert screened(runs_of(noisy), LIMITS, RULE).skips_first_run
    assert not screened(runs_of([*QUIET, 97.0]), LIMITS, RULE).skips_first_run


def test_first_runs_of_several_sessions_are_compared_behind_the_record() -> None:
    """A later run of a record without first runs is not a first one."""
    numbers = ((97.0, 100.0), (97.2, 100.1), (96.9, 99.8))
    record = make_record(
        *(
            make_baseline_run(metrics={"throughput": number}, session=str(session))
            for session, pair in enumerate(numbers)
            for number in pair
        )
    )

    screening = screened(runs_of([97.1, 100.2, 100.0]), LIMITS, RULE, record)
    later = screened(runs_of([97.1, 97.2]), LIMITS, RULE, replace(record, skips_first_run=True))

    assert kept(screening.runs) == [100.2, 100.0]
    assert screening.skips_first_run
    assert kept(later.runs) == [97.1, 97.2]
    assert (later.skips_first_run, later.notes) == (True, ())
    assert not screened(runs_of([100.1, 100.0]), LIMITS, RULE, record).skips_first_run


def test_no_first_recording_is_refused_for_outliers() -> None:
    """Eight runs and up to four more."""
    for sd, often, size in (
        (0.006, 1 / 20, 0.15), (0.006, 1 / 20, 0.05), (0.006, 1 / 8, 0.04), (0.003, 0.3, 0.05),
        (0.009, 0.0, 0.0), (0.015, 0.0, 0.0), (0.03, 0.0, 0.0),
    ):  # fmt: skip
        chance = random.Random(5)
        for _ in range(60):
            sample: list[Value] = []
            while len(sample) < 12:
                strays = chance.random() < often
                sample += values(100 * math.exp(chance.gauss(0, sd)) * (1 - size * strays))
                if len(sample) >= 8 and len(sample) - len(odd(sample)) >= 8:
                    break
            else:
                raise AssertionError((sd, often, size))
