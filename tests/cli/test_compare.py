"""`pytest-mlperf compare` judges two sides by the shipped rule, and says what it may not judge."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.cli.compare import compare_case, why_not
from pytest_mlperf.cli.measured import Measured
from pytest_mlperf.core.measurement import Run, Subject
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.stores.results import read_results, write_results
from tests.cli.lab import CASE, Lab, git, performance
from tests.cli.text import flat, widest
from tests.reports import verdicts
from tests.reports.verdicts import SERVER, SUBJECT, result, run, session

Say = Callable[..., tuple[int, str]]


# --- real sessions -------------------------------------------------------------------------------


def test_an_upgrade_that_halves_the_speed_is_a_drop(lab: Lab, say: Say) -> None:
    """All runs of a release are pooled from every session that says it ran it."""
    code, shown = say("compare", "acme==1.0", "acme==2.0")

    assert code == 1
    assert flat(shown) == flat(
        "A acme==1.0: 1 case of 2 sessions "
        "B acme==2.0: 1 case of 1 session "
        "verdict metric A B change interval limit runs "
        f"{CASE} PERF DROP samples/s  480  240  −50.0 % −55.0 to −45.0 % −30 % 6, 2 "
        "changed engine.acme 1.0 → 2.0 "
        "1 case on both sides: 1 PERF DROP"
    )
    assert widest(shown) <= 80


@pytest.mark.parametrize("a", ["git:main", "main", "git:HEAD"])
def test_against_committed_baselines_the_verdict_is_that_of_the_session(
    a: str, lab: Lab, say: Say
) -> None:
    """Same rule, same limits, same runs: the same change and interval to the last digit."""
    code, shown = say("compare", a, lab.upgraded)
    headline = performance(lab.upgraded).verdict.headline

    assert code == 1
    row = next(line for line in shown.splitlines() if "PERF DROP" in line)
    assert headline.startswith("samples/s −")
    change, interval = headline.removeprefix("samples/s ").partition(";")[0].split(" (")
    assert f"  {change}  {interval.removesuffix(')')}  " in row


@pytest.mark.parametrize(
    "name",
    [
        lambda file: file,
        lambda file: file.parent,
        lambda file: file.parent.name,
        lambda file: file.parent.name[:-3],
    ],
    ids=["file", "folder", "run id", "its beginning"],
)
def test_a_session_is_named_in_any_of_four_ways(
    name: Callable[[Path], Any], lab: Lab, say: Say
) -> None:
    code, shown = say("compare", name(lab.recorded), name(lab.unchanged))

    assert code == 0
    assert f"session {lab.recorded.parent.name}" in " ".join(shown.split())
    assert "changed   nothing that is recorded" in shown
    assert shown.splitlines()[-1] == "1 case on both sides: 1 ok"


def test_two_commits_are_compared_by_their_baselines(own_lab: Lab, say: Say) -> None:
    file = own_lab.path / "baselines/cpu/quick/first/Offline.Acme.fp32.json"
    text = file.read_text("utf-8")
    for one in performance(own_lab.recorded).verdict.runs:
        rate = one.metrics["throughput"]
        text = text.replace(repr(rate), repr(rate / 2))
    file.write_text(text, "utf-8")
    git(own_lab.path, "commit", "-q", "-a", "-m", "slower accepted")

    code, shown = say("compare", "HEAD~1", "HEAD")

    assert code == 1
    assert "PERF DROP  samples/s" in shown
    assert "  −30 %" in shown, "the limit is that of the suite here"
    assert say("compare", "HEAD", "HEAD~1")[0] == 0


def test_a_baseline_folder_can_be_named(lab: Lab, say: Say) -> None:
    assert say("compare", "main", lab.unchanged, "--baselines", "baselines")[0] == 0
    code, shown = say("compare", "main", lab.unchanged, "--baselines", "elsewhere")
    assert (code, shown) == (
        2,
        "pytest-mlperf: commit main holds no performance baseline in elsewhere\n",
    )


def test_a_damaged_baseline_in_git_is_left_out_and_told(own_lab: Lab, say: Say) -> None:
    folder = own_lab.path / "baselines/cpu/quick/other"
    folder.mkdir()
    (folder / "Offline.x.fp32.json").write_text("{}", "utf-8")
    git(own_lab.path, "add", ".")
    git(own_lab.path, "commit", "-q", "-m", "damaged")

    code, shown = say("compare", "HEAD", own_lab.unchanged)

    assert code == 0
    assert "left out: HASH:baselines/cpu/quick/other/Offline.x.fp32.json: schema is" in flat(shown)


def test_slowed_sessions_are_compared_and_said_so_but_never_pooled(own_lab: Lab, say: Say) -> None:
    """A handicap is for seeing a failure: it counts where it is named, not in a release's pool."""
    slow(own_lab.upgraded)

    code, shown = say("compare", own_lab.recorded, own_lab.upgraded)
    assert code == 1
    assert f"note      {CASE}: B: measured with --mlperf-handicap" in shown
    code, shown = say("compare", "acme==1.0", "acme==2.0")
    assert code == 2
    assert "ran acme==2.0; versions of acme there: 1.0" in shown


def slow(file: Path) -> None:
    found = read_results(file)
    cases = tuple(replace(case, handicap=0.5) for case in found.cases)
    write_results(file, replace(found, cases=cases))


# --- what names nothing --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "message"),
    [
        ("nothing", "'nothing' is no results file, no run in .mlperf/runs, no LIBRARY==VERSION"),
        ("git:nothing", "'nothing' is no commit of the git repository here"),
        ("git:--help", "'--help' is no commit of the git repository here"),
        ("acme==9", "no session in .mlperf/runs ran acme==9; versions of acme there: 1.0, 2.0"),
        ("torch==2", "no session in .mlperf/runs ran torch==2; versions of torch there: none"),
        ("2", "'2' fits 3 runs: "),
        ("acme.py", "acme.py: not a results file: "),
    ],
)
def test_a_side_that_names_nothing_says_what_it_could_be(
    a: str, message: str, lab: Lab, say: Say
) -> None:
    code, shown = say("compare", a, lab.unchanged)

    assert code == 2
    assert shown.startswith(f"pytest-mlperf: {message}")


def test_outside_a_repository_a_ref_names_nothing(
    lab: Lab, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))

    assert say("compare", "main", lab.unchanged)[0] == 2


# --- what may not be judged ----------------------------------------------------------------------


def sides(a: CaseResult | Iterable[CaseResult], b: CaseResult | Iterable[CaseResult]) -> None:
    for name, cases in (("a", a), ("b", b)):
        found = [cases] if isinstance(cases, CaseResult) else list(cases)
        write_results(Path(f"{name}.json"), session(*found))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def measured(*values: float, case: Any = verdicts.CASE, **fields: Any) -> CaseResult:
    """Return a test whose runs, each of a session of its own, reached these throughputs."""
    runs = tuple(
        replace(run(n, case=case, throughput=value, latency_p50=1 / value), session=str(n))
        for n, value in enumerate(values, start=1)
    )
    given = {name: fields.pop(name) for name in ("subject", "outcome") if name in fields}
    return result(replace(verdicts.OK, case=case, runs=runs, **given), **fields)


STEADY = (100.0, 100.2, 99.8, 100.1, 99.9)


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        (
            measured(*STEADY),
            measured(*STEADY, profile="official"),
            "another profile: quick → official",
        ),
        (
            measured(*STEADY),
            measured(*STEADY, subject=Subject(identity={"gpu": "H100"}, fingerprint={})),
            "other hardware: ecc True → None, gpu NVIDIA H200 → H100",
        ),
        (
            measured(*STEADY, case=SERVER, target_qps=100.0),
            measured(*STEADY, case=SERVER, target_qps=120.0),
            "offered rate differs: 100/s → 120/s",
        ),
        (
            measured(*STEADY, case=SERVER),
            result(verdicts.ERROR),
            "B has no run: ERROR engine: RuntimeError: CUDA out of memory",
        ),
    ],
    ids=["profile", "hardware", "rate", "no run"],
)
def test_what_differs_in_its_conditions_is_invalid_with_the_reason(
    a: CaseResult, b: CaseResult, reason: str, here: Path, say: Say
) -> None:
    sides(a, b)

    code, shown = say("compare", "a.json", "b.json")

    assert code == 2
    lines = shown.splitlines()
    row = lines.index("  INVALID")
    assert lines[row + 1].strip() == reason
    assert lines[-2:] == ["1 case on both sides: 1 INVALID", "nothing could be judged"]


def test_the_rate_of_offline_is_no_condition(here: Path, say: Say) -> None:
    """There it only says how much work is offered; throughput is what is measured."""
    sides(measured(*STEADY, target_qps=90.0), measured(*STEADY, target_qps=110.0))

    assert say("compare", "a.json", "b.json")[0] == 0


def test_a_drop_against_too_few_runs_is_advice(here: Path, say: Say) -> None:
    sides(measured(*STEADY[:3]), measured(50.0, 50.1))

    code, shown = say("compare", "a.json", "b.json")

    assert code == 0
    assert "INCONCLUSIVE  samples/s" in shown
    assert "advisory: A has 3 of 5 runs" in shown


def test_cases_of_one_side_only_are_listed(here: Path, say: Say) -> None:
    only_a = replace(verdicts.CASE, workload="bert")
    only_b = replace(verdicts.CASE, workload="gptj")
    both = measured(*STEADY)
    sides([both, measured(1.0, case=only_a)], [measured(1.0, case=only_b), both])

    code, shown = say("compare", "a.json", "b.json")

    assert code == 0
    assert "only A    bert-Offline-ort-fp16-H200\n" in shown
    assert "only B    gptj-Offline-ort-fp16-H200\n" in shown
    assert shown.endswith("1 case on both sides: 1 ok\n")


def test_without_a_common_case_nothing_is_judged(here: Path, say: Say) -> None:
    sides(measured(1.0), measured(1.0, case=replace(verdicts.CASE, workload="bert")))

    code, shown = say("compare", "a.json", "b.json")

    assert code == 2
    assert shown.endswith("0 cases on both sides\nnothing could be judged\n")


def test_what_several_cases_share_is_said_once(here: Path, say: Say) -> None:
    newer = Subject(identity=SUBJECT.identity, fingerprint={"engine.version": "1.21"})
    cases = [replace(verdicts.CASE, workload=name) for name in ("a", "b", "c")]
    sides(
        [measured(*STEADY, case=case) for case in cases],
        [measured(*STEADY, case=case, subject=newer, handicap=0.1) for case in cases],
    )

    _, shown = say("compare", "a.json", "b.json")

    assert shown.count("engine.version 1.20.1 → 1.21\n") == 1
    assert "note      B: measured with --mlperf-handicap 10% (3 cases)\n" in shown


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

    code, shown = say("compare", "ort==1", "ort==2")

    assert code == 0
    assert "samples/s  800  790  −1.2 %" in shown
    assert "changed   engine.ort 1 → 2\n" in shown


def test_a_value_that_no_run_gives_is_invalid_and_no_traceback(here: Path, say: Say) -> None:
    sides(measured(*STEADY), measured(-1.0))

    code, shown = say("compare", "a.json", "b.json")

    assert code == 2
    place = "b.json: not a results file: cases[0].verdict.runs[0].metrics.throughput"
    assert f"{place}: must be at least 1e-30, not -1.0; take the " in " ".join(shown.split())


# --- pure ----------------------------------------------------------------------------------------


def one(*values: float, **fields: Any) -> Measured:
    runs: tuple[Run, ...] = tuple(
        replace(run(n, throughput=value), session=str(n)) for n, value in enumerate(values)
    )
    given: dict[str, Any] = {
        "case": verdicts.CASE,
        "profile": "quick",
        "identity": SUBJECT.identity,
        "fingerprint": SUBJECT.fingerprint,
        "rate": None,
        "runs": runs,
    }
    return Measured(**{**given, **fields})


@pytest.mark.parametrize(
    ("limit", "values", "outcome"),
    [
        (0.03, (100.0,), Outcome.OK),
        (0.03, (90.0, 90.1), Outcome.PERF_DROP),
        (0.20, (90.0, 90.1), Outcome.OK),
        (0.03, (110.0, 110.1), Outcome.IMPROVED),
        (0.03, (96.5, 100.5, 96.0, 100.0, 97.0), Outcome.INCONCLUSIVE),
    ],
)
def test_the_limit_decides_as_in_a_test(
    limit: float, values: tuple[float, ...], outcome: Outcome
) -> None:
    found = compare_case(one(*STEADY), one(*values), lambda *_: {"throughput": limit})

    assert found.outcome is outcome


def test_equal_conditions_may_be_judged() -> None:
    assert why_not(one(1.0), one(2.0)) == ""
