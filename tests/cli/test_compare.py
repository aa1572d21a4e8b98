"""Test `pytest-mlperf compare`.

The shipped rule judges two sides, with the reasons for no verdict.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.addons.history.trend import why_no_ratio
from pytest_mlperf.cli.compare import Measured, compare_case, pair, why_not
from pytest_mlperf.core.baseline import BaselineRun
from pytest_mlperf.core.case import Case, Scenario
from pytest_mlperf.core.measurement import Run, Subject
from pytest_mlperf.core.noise.calibration import Calibrated, Calibration, NoiseSettings
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.trend import TrendPoint
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.reports.terminal.comparison import ComparedCase
from pytest_mlperf.stores import calibration
from pytest_mlperf.stores.results import write_results
from tests.cli.lab import CASE, Lab, edit_cases, git, performance
from tests.cli.text import Say, differing, flat, one_line, widest
from tests.reports import verdicts
from tests.reports.verdicts import SERVER, SUBJECT, result, run, session


def test_an_upgrade_that_costs_most_of_the_speed_is_a_drop(lab: Lab, say: Say) -> None:
    """All runs of a release are pooled from every session that says it ran it."""
    output = say.ends(1, "compare", "acme==1.0", "acme==2.0")
    assert flat(output) == flat(
        "A acme==1.0: 1 case of 2 sessions "
        "B acme==2.0: 1 case of 1 session "
        "verdict metric A B change interval limit runs "
        f"{CASE} PERF DROP samples/s  480  240  −50.0 % −55.0 to −45.0 % −30 % 6, 2 "
        "changed engine.acme 1.0 → 2.0 "
        f"note {CASE}: default noise, 5 % per run: this machine is not calibrated "
        "A and B were compared once, with all runs, by session; false alarms: at most 1 "
        "comparison in 100 "
        "1 case in both results: 1 PERF DROP"
    )
    assert widest(output) <= 80


def test_against_committed_baselines_the_word_is_that_of_the_session(lab: Lab, say: Say) -> None:
    """Same limits and runs; the change differs by how sessions of other sizes are weighted."""
    (judged,) = (
        one for one in performance(lab.upgraded).verdict.metrics if one.metric == "throughput"
    )
    for a in ("git:main", "main", "git:HEAD"):
        output = say.ends(1, "compare", a, lab.upgraded)
        row = next(line for line in output.splitlines() if "PERF DROP" in line)
        change = re.search(r"  −(\d+\.\d) %  −", row)
        assert change is not None
        assert -float(change[1]) / 100 == pytest.approx(judged.change, abs=0.003)


def test_a_session_is_named_by_file_folder_run_or_its_beginning(lab: Lab, say: Say) -> None:
    names: list[Callable[[Path], object]] = [
        lambda file: file,
        lambda file: file.parent,
        lambda file: file.parent.name,
        lambda file: file.parent.name[:-3],
    ]
    for name in names:
        output = say.ends(0, "compare", name(lab.recorded), name(lab.unchanged))
        assert f"session {lab.recorded.parent.name}" in one_line(output)
        assert "changed   no recorded difference" in output
        # Runs that scatter as little as on a machine at rest exclude the limit for good.
        assert re.fullmatch("1 case in both results: 1 (ok|PROVISIONAL)", output.splitlines()[-1])


def test_two_commits_are_compared_by_their_baselines(own_lab: Lab, say: Say) -> None:
    """A damaged one is left out with a message."""
    file = own_lab.path / "baselines/cpu/quick/first/Offline.Acme.fp32.json"
    text = file.read_text("utf-8")
    for run_record in performance(own_lab.recorded).verdict.runs:
        rate = run_record.metrics["throughput"]
        text = text.replace(repr(rate), repr(rate / 6))
    file.write_text(text, "utf-8")
    git(own_lab.path, "commit", "-q", "-a", "-m", "slower accepted")
    output = say.ends(1, "compare", "HEAD~1", "HEAD")
    assert "PERF DROP  samples/s" in output
    assert "  −30 %" in output, "the limit is that of the suite here"
    assert say("compare", "HEAD", "HEAD~1")[0] == 0
    folder = own_lab.path / "baselines/cpu/quick/other"
    folder.mkdir()
    (folder / "Offline.x.fp32.json").write_text("{}", "utf-8")
    git(own_lab.path, "add", ".")
    git(own_lab.path, "commit", "-q", "-m", "damaged")
    _, output = say("compare", "HEAD", own_lab.unchanged)
    assert "left out: HASH:baselines/cpu/quick/other/Offline.x.fp32.json: schema is" in flat(output)


def test_slowed_sessions_are_compared_and_said_so_but_never_pooled(own_lab: Lab, say: Say) -> None:
    edit_cases(own_lab.upgraded, lambda case: replace(case, handicap=0.5))
    output = say.ends(1, "compare", own_lab.recorded, own_lab.upgraded)
    assert f"note      {CASE}: B: measured with --mlperf-handicap" in output
    output = say.ends(2, "compare", "acme==1.0", "acme==2.0")
    assert "used acme==2.0; versions there: 1.0" in output


def test_a_side_that_names_nothing_says_what_it_could_be(
    lab: Lab, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = {
        "nothing": "'nothing' is not a results file, a session in .mlperf/runs, LIBRARY==VERSION",
        "git:nothing": "'nothing' is not a commit of this git repository",
        "git:--help": "'--help' is not a commit of this git repository",
        "acme==9": "no session in .mlperf/runs used acme==9; versions there: 1.0, 2.0",
        "torch==2": "no session in .mlperf/runs used torch==2; versions there: none",
        "2": "3 sessions match '2': ",
        "acme.py": "acme.py: not a results file: ",
    }
    rows: list[tuple[tuple[object, ...], int, tuple[str, ...]]] = [
        (("compare", a, lab.unchanged), 2, (f"pytest-mlperf: {message}",))
        for a, message in messages.items()
    ]
    folder = ("compare", "main", lab.unchanged, "--baselines")
    rows.append(((*folder, "elsewhere"), 2, ("main has no performance baseline in elsewhere",)))
    rows.append(((*folder, "baselines"), 0, ()))
    assert differing(say, rows) == []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert say("compare", "main", lab.unchanged)[0] == 2


def sides(a: CaseResult | Iterable[CaseResult], b: CaseResult | Iterable[CaseResult]) -> None:
    for name, cases in (("a", a), ("b", b)):
        case_results = [cases] if isinstance(cases, CaseResult) else list(cases)
        write_results(Path(f"{name}.json"), session(*case_results))


def measured(*values: float, case: Any = verdicts.CASE, **fields: Any) -> CaseResult:
    """Return a test whose runs, each of a session of its own, reached these throughputs."""
    runs = tuple(
        replace(run(n, case=case, throughput=value, latency_p50=1 / value), session=str(n))
        for n, value in enumerate(values, start=1)
    )
    verdict_fields = {name: fields.pop(name) for name in ("subject", "outcome") if name in fields}
    return result(replace(verdicts.OK, case=case, runs=runs, **verdict_fields), **fields)


STEADY = (100.0, 100.2, 99.8, 100.1, 99.9)
NOISY = (100.0, 102.0, 98.0, 101.0, 99.0)


OTHER = Subject(identity={"gpu": "H100"}, fingerprint={})
ON_SERVER = measured(*STEADY, case=SERVER, target_qps=100.0)
INVALID: list[tuple[CaseResult, CaseResult, str]] = [
    (
        measured(*STEADY),
        measured(*STEADY, profile="official"),
        "different profiles: quick → official",
    ),
    (
        measured(*STEADY),
        measured(*STEADY, subject=OTHER),
        "different hardware: ecc True → None, gpu NVIDIA H200 → H100",
    ),
    (ON_SERVER, replace(ON_SERVER, target_qps=120.0), "offered rate differs: 100/s → 120/s"),
    (ON_SERVER, result(verdicts.ERROR), "B has no runs: ERROR engine: RuntimeError: CUDA out of "),
]


def bert(*values: float) -> CaseResult:
    return measured(*values, case=replace(verdicts.CASE, workload="bert"))


@pytest.mark.process
def test_what_two_files_have_in_common_is_judged(here: Path, say: Say) -> None:
    """The rate of Offline is not a condition, other conditions are; too few runs are advice."""
    gptj = measured(1.0, case=replace(verdicts.CASE, workload="gptj"))
    both = measured(*STEADY)
    only = ("only A bert-Offline-ort-fp16-H200", "only B gptj-Offline-ort-fp16-H200")
    rows: list[tuple[Any, Any, int, tuple[str, ...]]] = [
        (measured(*STEADY, target_qps=90.0), measured(*STEADY, target_qps=110.0), 0, ()),
        (
            measured(*STEADY[:3]),
            measured(50.0, 50.1),
            0,
            ("INCONCLUSIVE samples/s", "A has 3 runs: a drop is reported, but not proven"),
        ),
        ([both, bert(1.0)], [gptj, both], 0, (*only, "1 case in both results: 1 ok")),
        (measured(1.0), bert(1.0), 2, ("0 cases in both results no case could be judged",)),
        (
            both,
            measured(-1.0),
            2,
            (
                "b.json: not a results file: cases[0].verdict.runs[0].metrics.throughput: must be "
                "at least 1e-30, not -1.0; use the ",
            ),
        ),
    ]
    nothing = "1 case in both results: 1 INVALID no case could be judged"
    rows += [(a, b, 2, (f" INVALID {reason}", nothing)) for a, b, reason in INVALID]
    for a, b, code, texts in rows:
        sides(a, b)
        assert differing(say, [(("compare", "a.json", "b.json"), code, texts)]) == []


@pytest.mark.process
def test_what_several_cases_share_is_said_once(here: Path, say: Say) -> None:
    newer = Subject(identity=SUBJECT.identity, fingerprint={"engine.version": "1.21"})
    cases = [replace(verdicts.CASE, workload=name) for name in ("a", "b", "c")]
    sides(
        [measured(*STEADY, case=case) for case in cases],
        [measured(*STEADY, case=case, subject=newer, handicap=0.1) for case in cases],
    )
    _, output = say("compare", "a.json", "b.json")
    assert output.count("engine.version 1.20.1 → 1.21\n") == 1
    assert "note      B: measured with --mlperf-handicap 10% (3 cases)\n" in output


@pytest.mark.process
def test_of_several_builds_the_nearest_are_compared(here: Path, say: Say) -> None:
    """A pool may hold runs of other options; like is compared with like."""

    def build(version: str, threads: int) -> Subject:
        fingerprint = {"engine.ort": version, "options": f"threads {threads}"}
        return Subject(identity=SUBJECT.identity, fingerprint=fingerprint)

    for number, (version, threads, rate) in enumerate(
        [("1", 1, 100.0), ("1", 8, 800.0), ("2", 8, 790.0)]
    ):
        file = Path(f".mlperf/runs/2026112{number}-000000-abcd/results.json")
        rates = [rate * value / 100 for value in STEADY]
        write_results(file, session(measured(*rates, subject=build(version, threads))))
    output = say.ends(0, "compare", "ort==1", "ort==2")
    assert "samples/s  800  790  −1.2 %" in output
    assert "changed   engine.ort 1 → 2\n" in output


def measured_case(*values: float, **fields: Any) -> Measured:
    runs: tuple[Run, ...] = tuple(
        replace(run(n, throughput=value), session=str(n)) for n, value in enumerate(values)
    )
    case_fields: dict[str, Any] = {
        "case": verdicts.CASE,
        "profile": "quick",
        "identity": SUBJECT.identity,
        "fingerprint": SUBJECT.fingerprint,
        "rate": None,
        "runs": runs,
    }
    return Measured(**{**case_fields, **fields})


def sessions(**groups: Sequence[float]) -> tuple[Run, ...]:
    """Return runs by session, oldest first."""
    return tuple(
        replace(run(n, throughput=value), session=name)
        for name, values in groups.items()
        for n, value in enumerate(values, start=1)
    )


def named(prefix: str, count: int, values: Sequence[float]) -> dict[str, Sequence[float]]:
    return {f"{prefix}{number}": values for number in range(count)}


def test_pooled_runs_are_looked_at_once_and_all() -> None:
    """The oldest run was as fast; the two oldest were slow; A is of one session, or of four."""
    olds: list[dict[str, Sequence[float]]] = [{"a": [100.0] * 8}, named("a", 4, [100.0, 100.0])]
    news: list[tuple[dict[str, Sequence[float]], set[Outcome]]] = [
        ({"old": [100.0], **named("b", 10, [90.0, 90.0])}, {Outcome.PERF_DROP}),
        ({"old": [96.0] * 2, **named("b", 10, [101.0] * 2)}, {Outcome.OK, Outcome.INCONCLUSIVE}),
    ]
    for old, (new, outcomes), is_reversed in product(olds, news, (False, True)):
        order = dict(reversed(new.items())) if is_reversed else new
        a, b = (replace(measured_case(), runs=sessions(**groups)) for groups in (old, order))
        comparison = compare_case(a, b, lambda *_: {"throughput": 0.03})
        assert comparison.outcome in outcomes
        assert comparison.metrics[0].runs == sum(map(len, new.values()))


def test_a_fact_that_an_older_record_lacks_makes_no_other_build() -> None:
    facts = {**SUBJECT.fingerprint, "inputs.first": "ab", "inputs.first_16": "cd"}
    newest = measured_case(1.0, fingerprint=facts)
    older, other = (
        measured_case(1.0),
        measured_case(1.0, fingerprint={**facts, "engine.version": "0"}),
    )
    assert pair([other, older], [newest]) == (older, newest)


def test_the_limit_decides_as_in_a_test() -> None:
    """A session a side is provisional, unless no session explains a change of that size."""

    def judged(a: tuple[Run, ...], b: tuple[Run, ...], limit: float) -> ComparedCase:
        old, after = (replace(measured_case(), runs=runs) for runs in (a, b))
        return compare_case(old, after, lambda *_: {"throughput": limit})

    steady = measured_case(*STEADY).runs
    for limit, values, outcome in (
        (0.03, (100.0,), Outcome.OK),
        (0.03, (90.0, 90.1), Outcome.PERF_DROP),
        (0.20, (90.0, 90.1), Outcome.OK),
        (0.03, (110.0, 110.1), Outcome.IMPROVED),
        (0.03, (96.5, 100.5, 96.0, 100.0, 97.0), Outcome.INCONCLUSIVE),
    ):
        assert judged(steady, measured_case(*values).runs, limit).outcome is outcome
    assert why_not(measured_case(1.0), measured_case(2.0)) == ""

    for speed, outcome, leans in (
        (100.0, Outcome.PROVISIONAL, "ok"),
        (94.0, Outcome.PROVISIONAL, "drop"),
        (98.0, Outcome.INCONCLUSIVE, None),
        (60.0, Outcome.PERF_DROP, None),
    ):
        noisy = [speed * value / 100 for value in NOISY]
        comparison = judged(sessions(a=NOISY), sessions(b=noisy), 0.03)
        assert (comparison.outcome, comparison.metrics[0].direction) == (outcome, leans)
        is_open = outcome is not Outcome.PERF_DROP
        note = comparison.metrics[0].note
        is_unknown = isinstance(note, Note) and note.key == "sessions_unknown"
        assert is_unknown is is_open

    less = replace(steady[2], metrics={"latency_p50": 1.0}, started="2026-11-03T01:02:03+00:00")
    comparison = judged(steady, (*steady[:2], less), 0.03)
    lacking = {"metric": "throughput", "count": 1, "of": 3, "side": "B", "started": less.started}
    note = Note.of("missing_on_side", **lacking)
    assert (comparison.outcome, comparison.metrics[0].note) == (Outcome.INVALID, note)


@pytest.mark.process
def test_the_noise_is_that_of_the_calibration_beside_the_baselines(here: Path, say: Say) -> None:
    settings = NoiseSettings(
        date="2026-11-21", prior_df=8, prior_sd=0.03, prior_sd_low=0.02, prior_sd_high=0.04,
        session_share=0.4, max_runs=5, cases=2, runs=16, sessions=4,
    )  # fmt: skip
    machine = Calibrated(identity=dict(SUBJECT.identity), settings=settings, cases=())
    file = Path("baselines/calibration/H200.json")
    sides(measured(*STEADY), measured(*STEADY))
    line = ("compare", "a.json", "b.json")
    calibrated = ("noise as calibrated 2026-11-21: 2 cases, 16 runs on 4 days",)
    usual = ("this machine is not calibrated",)
    calibration.save(file, Calibration(accelerator="H200", machines=(machine,)))
    rows = [(line, 0, calibrated), ((*line, "--baselines", "elsewhere"), 0, usual)]
    assert differing(say, rows) == []
    other = replace(machine, identity={"gpu": "other"})
    calibration.save(file, Calibration(accelerator="H200", machines=(other,)))
    assert differing(say, [(line, 0, usual)]) == []


@pytest.mark.process
def test_many_cases_are_judged_together(here: Path, say: Say) -> None:
    """A drop that only one of fifty shows, and barely, is SUSPECT and fails nothing."""
    cases = [replace(verdicts.CASE, workload=f"w{number:02}") for number in range(50)]

    def side(first: float) -> list[CaseResult]:
        speeds = [first] + [1.0] * 49
        return [
            measured(*(speed * value for value in NOISY), case=case)
            for speed, case in zip(speeds, cases, strict=True)
        ]

    sides(side(1.0), side(0.965))
    output = say.ends(0, "compare", "a.json", "b.json")
    assert "SUSPECT samples/s, a drop if judged alone, but not among 50 metrics" in one_line(output)
    assert output.splitlines()[-1].startswith("50 cases in both results: 1 SUSPECT")
    sides(side(1.0), side(0.7))
    output = say.ends(1, "compare", "a.json", "b.json")
    assert "the only drop among 50 metrics judged together" in one_line(output)


def test_what_a_had_enough_queries_for_stays_judged() -> None:
    """A build that gets fewer queries done is not judged by less."""

    def side(queries: int, seconds: float) -> Measured:
        made = measured_case(*STEADY)
        runs = tuple(
            replace(run, queries=queries, metrics={"latency_p99": seconds * value / 100})
            for run, value in zip(made.runs, STEADY, strict=True)
        )
        return replace(made, runs=runs)

    outcomes = [
        compare_case(side(before, 0.5), side(after, 1.0), lambda *_: {"latency_p99": 0.1}).outcome
        for before, after in ((1200, 900), (900, 1200))
    ]
    assert outcomes == [Outcome.PERF_DROP, Outcome.INCONCLUSIVE]


FP8 = Case(workload="w", scenario=Scenario.SERVER, engine="e", precision="fp8", accelerator="H200")


def found_rate(find: str | None, *rates: float, offered: float | None = None) -> Measured:
    """Return a side that found these rates, or measured at one that was offered."""
    fingerprint = {"engine": "e", **({"find": find} if find else {})}
    limits = {"throughput": 0.03}
    return measured_case(*rates, case=FP8, fingerprint=fingerprint, rate=offered, limits=limits)


def point(find: str | None) -> TrendPoint:
    metrics, day = {"throughput": 40.0}, "2026-11-21"
    run = BaselineRun(
        metrics=metrics,
        within_se={},
        session="s",
        started=f"{day}T12:00:00+00:00",
        samples=1000,
        duration_s=60.0,
        commit=None,
    )
    return TrendPoint(
        date=day,
        commit="",
        reason="",
        case=FP8,
        profile="quick",
        identity=SUBJECT.identity,
        fingerprint={"engine": "e", **({"find": find} if find else {})},
        rate=None,
        means=metrics,
        runs=(run,),
    )


def test_rates_found_under_other_conditions_are_not_compared() -> None:
    a, differs = "ttft_p99 < 1 s", "the search condition differs: ttft_p99 < 1 s →"
    for b, reason in {
        a: "",
        "ttft_p99 < 2 s": f"{differs} ttft_p99 < 2 s",
        None: f"{differs} no search",
    }.items():
        offered = None if b else 40.0
        assert why_not(found_rate(a, 40.0), found_rate(b, 40.0, offered=offered)) == reason
        expected = (reason,) if reason else ()
        assert why_no_ratio(point(a), point(b), "throughput") == expected
    bare = replace(point(None), fingerprint={})
    assert why_no_ratio(bare, point(a), "throughput") == ()


def test_rates_found_are_judged_like_any_throughput() -> None:
    find = "ttft_p99 < 1 s"
    a = found_rate(find, *(40 + 0.1 * (-1) ** n for n in range(8)))
    b = found_rate(find, *(36.4 + 0.1 * (-1) ** n for n in range(8)))
    comparison = compare_case(a, b, lambda side, _: side.limits or {})
    assert comparison.outcome is Outcome.PERF_DROP
    assert [metric.metric for metric in comparison.metrics] == ["throughput"]
