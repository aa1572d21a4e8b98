"""Which outcome decides, and which outcomes fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.guarantees import Guarantee
from pytest_mlperf.core.measurement import repeat_note
from pytest_mlperf.core.reason import Key, Reason, gpu_sentences
from pytest_mlperf.core.verdict import SEVERITY, MetricVerdict, Outcome, worst
from pytest_mlperf.reports.promises import final_word
from pytest_mlperf.reports.sentences import sentence
from tests.reports.verdicts import DROP, PROVISIONAL_DROP, metric, run


def test_an_outcome_fails_or_passes_and_the_worst_metric_decides_whatever_the_order() -> None:
    """The last of each row is the worst."""
    failing = "PERF_DROP PAIR_FAIL ACC_DROP POWER_DROP GATE_FAIL INVALID ERROR UNEXPECTED_PASS"
    assert {outcome.name for outcome in Outcome if outcome.fails} == {*failing.split()}
    assert sorted(SEVERITY) == sorted(Outcome)

    for names in (
        "OK",
        "IMPROVED OK",
        "OK INCONCLUSIVE",
        "OK NO_BASELINE",
        "NO_BASELINE INCONCLUSIVE",
        "OK INCONCLUSIVE PERF_DROP",
        "PERF_DROP ACC_DROP",
        "ACC_DROP GATE_FAIL",
        "GATE_FAIL INVALID",
        "INVALID ERROR",
    ):
        outcomes = [Outcome[name] for name in names.split()]
        assert {worst(list(order)) for order in permutations(outcomes)} == {outcomes[-1]}


BUILD = ", or compare with the old build in one session: --mlperf-against REF"


UNTIL = "2026-12-05"

APPEND = (
    'run the baseline\'s build again on another day (--mlperf-update=append --mlperf-reason "...")'
)


OF_DAYS = (
    "baseline has {} of 4 days: run the baseline's build with --mlperf-update=missing on {} more "
    "day{}"
)
CALIBRATE = (
    "5 days of baseline do not show the day-to-day variation: calibrate on other days "
    "(pytest-mlperf calibrate)"
)


def test_the_remedy_follows_from_the_missing_guarantee() -> None:
    """Among several metrics the one that dropped decides."""
    cases: list[tuple[str, Any, int, str | None, str]] = [
        ("ok", "few sessions", 1, None, OF_DAYS.format(1, 3, "s")),
        ("drop", "few sessions", 3, None, f"{OF_DAYS.format(3, 1, '')}{BUILD}"),
        ("drop", "few sessions", 5, None, f"{CALIBRATE}{BUILD}"),
        ("ok", "old", 4, UNTIL, f"baseline too old since {UNTIL}: {APPEND}"),
        ("drop", "old", 4, None, f"baseline of one day: {APPEND}{BUILD}"),
        ("ok", None, 4, UNTIL, f"the baseline's sessions vary too much: {APPEND}"),
        ("drop", None, 9, UNTIL, f"the baseline's sessions vary too much: {APPEND}{BUILD}"),
    ]
    for leans, lacking, sessions, until, words in cases:
        promised = Guarantee(
            lacks=lacking,
            runs=8,
            sessions=sessions,
            days=1,
            age_days=None,
            run_sd=0.01,
            final_until=until,
        )
        judged = provisional(leans, lacking, sessions)
        verdict = replace(
            PROVISIONAL_DROP,
            metrics=(judged,),
            baseline=replace(PROVISIONAL_DROP.baseline, guarantee=promised),
        )
        assert final_word(verdict) == words
    both = (provisional("ok", "few sessions", 1), provisional("drop", "old", 1))
    verdict = replace(
        PROVISIONAL_DROP, metrics=both, baseline=replace(PROVISIONAL_DROP.baseline, guarantee=None)
    )
    assert (final_word(verdict) or "").startswith("baseline of one day: ")
    assert final_word(DROP) is None


def provisional(leans: str, lacking: str | None, sessions: int) -> MetricVerdict:
    fields: dict[str, Any] = {"direction": leans, "lacks": lacking, "days": sessions}
    return metric(outcome=Outcome.PROVISIONAL, **fields)


DOCS = Path(__file__).parents[2] / "docs" / "validity.md"
HOT = Reason(key=Key.HW_THERMAL_SLOWDOWN, text="heat for 1.20 s")
HOTTER = Reason(key=Key.HW_THERMAL_SLOWDOWN, text="heat for 2.40 s")
LOST = Reason(key=Key.GPU_LOST, text="the GPU was lost")


def measured_again(*reasons: Sequence[Reason]) -> str:
    note = repeat_note([replace(run(), invalid=tuple(of_run)) for of_run in reasons])
    assert note is not None
    return sentence(note)


def test_each_reason_is_listed_once_with_its_latest_figures_and_every_key_on_the_page() -> None:
    assert measured_again([HOT]) == "1 run INVALID, measured again: heat for 1.20 s"
    assert measured_again([HOT], [HOTTER, LOST]) == (
        "2 runs INVALID, measured again: heat for 2.40 s; the GPU was lost"
    )

    page = DOCS.read_text("utf-8")

    assert [key for key in Key if f"`{key}`" not in page] == []


IDLE = "the GPU did not do the work: no utilisation in any of {} readings over 7.0 s, {} W"


@pytest.mark.parametrize(
    ("texts", "sentences"),
    [
        (
            {n: IDLE.format(34 + n, 80) for n in (4, 5, 6, 7)},
            [f"4 of 8 GPUs (4 to 7): {IDLE.format('38 to 41', 80)}"],
        ),
        ({3: IDLE.format(36, 80)}, [f"GPU 3: {IDLE.format(36, 80)}"]),
        (
            {n: "heat for 1,200 s" if n else "heat for 980 s" for n in range(8)},
            ["each of 8 GPUs: heat for 980 to 1,200 s"],
        ),
        (
            dict.fromkeys((0, 2, 3), "in use by process 99999 (1.9 GiB)"),
            ["3 of 8 GPUs (0, 2, 3): in use by process 99999 (1.9 GiB)"],
        ),
        (
            {1: "in use by process 5", 2: "in use by process 6"},
            ["GPU 1: in use by process 5", "GPU 2: in use by process 6"],
        ),
    ],
)
def test_the_same_reason_of_several_gpus_is_one_sentence(
    texts: dict[int, str], sentences: list[str]
) -> None:
    assert gpu_sentences([(f"GPU {n}", text) for n, text in texts.items()], 8) == sentences


def test_every_reason_of_one_key_is_listed_for_repeated_runs() -> None:
    lost = [Reason(key=Key.GPU_LOST, text=f"GPU {n} was lost") for n in (1, 2)]

    assert measured_again([HOT, *lost]).endswith("1.20 s; GPU 1 was lost; GPU 2 was lost")
