"""`pytest-mlperf update` shows what would be accepted, and writes only what may be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.cli import main
from pytest_mlperf.cli.update._proposals import PerformanceProposal
from pytest_mlperf.core.baseline import Baseline
from pytest_mlperf.core.case import Case
from pytest_mlperf.core.energy import EnergyReading, Source
from pytest_mlperf.core.errors import BaselineError
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.verdict import BaselineReference, Gate, GateState, Outcome, Verdict
from pytest_mlperf.stores import baselines
from pytest_mlperf.stores.results import write_results
from tests.cli.text import Say, one_line
from tests.reports import verdicts
from tests.reports.verdicts import CASE, SUITE, result, run, session

FILE = Path("baselines/H200/quick/resnet50/Offline.ort.fp16.json")
RESULTS = Path(".mlperf/runs/20261120-ab12/results.json")
WRITE = ("--write", "--reason", "onnxruntime 1.21")

ENERGY = EnergyReading(
    source=Source.NVML,
    joules=9.0,
    uncertainty_j=0.1,
    window_s=3.0,
    gated=True,
)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("baselines").mkdir()
    Path(SUITE).parent.mkdir()
    Path(SUITE).touch()


def measured(
    *throughputs: float,
    case: Case = CASE,
    outcome: Outcome = Outcome.NO_BASELINE,
    verdict: dict[str, Any] | None = None,
    **fields: Any,
) -> CaseResult:
    """Return a result whose runs reached these throughputs."""
    base = {Outcome.NO_BASELINE: verdicts.NO_BASELINE}.get(outcome, verdicts.OK)
    verdict_fields: dict[str, Any] = {
        "case": case,
        "outcome": outcome,
        "runs": tuple(
            run(number, case=case, throughput=value)
            for number, value in enumerate(throughputs or (100.0, 101.0) * 4)
        ),
        "baseline": BaselineReference(
            file=f"baselines/{case.accelerator}/quick/{case.workload}/"
            f"{case.scenario}.{case.engine}.{case.precision}.json"
        ),
        **(verdict or {}),
    }
    case_verdict: Verdict = replace(base, **verdict_fields)
    return result(case_verdict, **fields)


def update(*arguments: str) -> int:
    return main(["update", *arguments])


def save(*results: CaseResult, path: Path = RESULTS) -> None:
    write_results(path, session(*results))


def accept(*results: CaseResult) -> None:
    """Write results as baselines."""
    save(*results)
    assert update(*WRITE) == 0


def stored(path: Path = FILE) -> Baseline:
    baseline = baselines.load(path)
    assert baseline is not None
    return baseline


def test_without_write_it_only_shows_what_write_records(say: Say) -> None:
    save(measured())
    assert say.ends(0, "update") == (
        f"from {RESULTS}, run 20261120-ab12\n"
        "resnet50-Offline-ort-fp16-H200\n"
        "  throughput new 100.5\n"
        f"  8 runs -> {FILE}\n"
        'dry run: 1 to write, 0 refused; to write: pytest-mlperf update --write --reason "..."\n'
    )
    assert list(Path("baselines").iterdir()) == []

    assert say.ends(0, "update", *WRITE).endswith(
        "wrote 1, refused 0; review and commit: git add baselines\n"
    )
    baseline = stored()
    (record,) = baseline.records
    assert (baseline.workload, baseline.scenario, baseline.profile) == (
        "resnet50",
        "Offline",
        "quick",
    )
    assert [r.metrics["throughput"] for r in record.runs] == [100.0, 101.0] * 4
    assert record.identity == verdicts.SUBJECT.identity
    assert record.fingerprint == verdicts.SUBJECT.fingerprint
    assert (record.target_qps, record.qps_source) == (25_000.0, "suite")
    assert [(h.action, h.reason, h.runs) for h in record.history] == [
        ("record", "onnxruntime 1.21", 8)
    ]
    assert 0 < record.minimum_detectable_change["throughput"] < 0.05


def test_a_session_that_was_added_elsewhere_is_added_here(say: Say) -> None:
    """Where the machine's baselines cannot be committed, as in a CI job."""
    save(measured(*(100.0, 101.0) * 4))
    assert update(*WRITE) == 0
    grown = measured(99.0, 100.0, outcome=Outcome.RECORDED)
    started = "2026-11-21T10:11:12+00:00"
    runs = [replace(r, session="20261121-cd34", started=started) for r in grown.verdict.runs]
    save(replace(grown, verdict=replace(grown.verdict, runs=tuple(runs))))
    assert "  10 runs -> " in say.ends(0, "update", *WRITE, "--no-runs")
    (record,) = stored().records
    assert [len(record.runs), len(record.sessions)] == [10, 2]
    assert [entry.action for entry in record.history] == ["record", "append"]
    assert record.session_noise["throughput"].df == 1.0
    assert "  kept: these runs are already in the baseline\n" in say.ends(
        0, "update", *WRITE, "--no-runs"
    )


def test_outliers_and_unlike_first_runs_are_left_out_and_told(say: Say) -> None:
    """Fewer than five runs that belong together are refused.

    A session that was judged made a first run that did not count, and is none now.
    """
    usual = (100.0, 101.0, 100.5, 99.8, 100.2, 100.1, 100.4)

    save(measured(*usual[:3], 60.0, *usual[3:]))
    output = say.ends(0, "update", *WRITE)
    assert "  run 4 of 8 is an outlier, 60 samples/s: not recorded\n  7 runs -> " in output
    assert [run.metrics["throughput"] for run in stored().records[0].runs] == [*usual]

    FILE.unlink()
    save(measured(90.0, *usual, outcome=Outcome.RECORDED))
    assert "  the first run of a session differs by −10.3 %" in say.ends(0, "update", *WRITE)
    assert "these runs are already in" in say.ends(0, "update", *WRITE)
    chosen = ("--case", CASE.id)
    save(measured(*(value + 0.01 for value in usual), outcome=Outcome.OK))
    say.ends(0, "update", *WRITE, *chosen)
    assert (len(stored().records[0].runs), stored().records[0].skips_first_run) == (7, True)
    anew = [value + 0.02 for value in usual]
    save(measured(*anew, outcome=Outcome.RECORDED))
    say.ends(0, "update", *WRITE, *chosen)
    assert not stored().records[0].skips_first_run

    FILE.unlink()
    save(measured(100.0, 100.1, 60.0, 100.2, 100.1))
    assert "only 4 of 5 runs are left; a baseline needs 5" in say.ends(1, "update", *WRITE)
    assert not FILE.exists()


def test_a_baseline_that_stays_is_replaced_by_better_values_and_keeps_its_history(say: Say) -> None:
    accept(measured())
    again = measured(100.2, outcome=Outcome.OK)
    save(again)
    assert (
        f"to replace it: --case {CASE.id}; the baseline has 1 of 4 days; to add another day: "
        f'pytest "{again.test}" --mlperf-update=missing'
    ) in one_line(say.ends(0, "update"))
    save(measured(*(110.0,) * 8, outcome=Outcome.IMPROVED))
    assert "  throughput 100.5 -> 110 (+9.5 %)\n" in say.ends(
        0, "update", "--write", "--reason", "faster kernels"
    )
    (record,) = stored().records
    assert [r.metrics["throughput"] for r in record.runs] == [110.0] * 8
    assert [(h.action, h.reason) for h in record.history] == [
        ("record", "onnxruntime 1.21"),
        ("replace", "faster kernels"),
    ]
    assert record.history[1].old["throughput"] == pytest.approx(100.499, abs=0.01)
    content = FILE.read_bytes()
    assert "  kept: these runs are already in the baseline\n" in say.ends(0, "update", *WRITE)
    assert FILE.read_bytes() == content


def test_the_newest_results_with_the_named_cases_are_taken(say: Say) -> None:
    other = replace(CASE, engine="trt")
    folder = Path(".mlperf/runs")
    save(measured(), measured(case=other), path=folder / "20261119-ffff/results.json")
    save(measured(case=other), path=folder / "20261121-0000/results.json")
    save(measured(), path=Path("other/results.json"))
    for arguments, source in (
        ((), ".mlperf/runs/20261121-0000/"),
        (("other/results.json",), "other/"),
        (("--runs-dir", ".mlperf"), ".mlperf/runs/20261121-0000/"),
        (("--case", CASE.id), ".mlperf/runs/20261119-ffff/"),
        (("--accept-regression", other.id), ".mlperf/runs/20261121-0000/"),
    ):
        assert say("update", *arguments)[1].startswith(f"from {source}results.json, ")


@pytest.mark.process
def test_scores_are_kept_where_their_session_looked_for_them_by_a_pass_of_the_engine(
    say: Say,
) -> None:
    save(result(verdicts.UNGATED))
    assert say.ends(0, "update", "--no-runs").endswith("nothing to write, 0 refused\n")
    assert say.ends(1, "update").splitlines()[1:] == [
        f"{CASE.id} accuracy",
        "  refused: scores need the whole data set; H200 is not on this machine; run on one "
        "that has it: "
        f'pytest "{SUITE}::test_accuracy[{CASE.id}]" --mlperf-update=replace '
        '--mlperf-reason "..."',
        "nothing to write, 1 refused",
    ]
    for file, expected in (
        ("kept/accuracy/resnet50/ort.fp16.json", "  refused: the session was judged"),
        ("baselines/accuracy/resnet50/ort.fp32.json", "  kept: judged against a reference ("),
        ("baselines/accuracy/resnet50/ort.fp16.json", "scores need the whole data set; "),
    ):
        scores = {
            "kind": "accuracy",
            "baseline": BaselineReference(file=file),
            "accuracy": verdicts.SCORED,
        }
        save(measured(verdict=scores))
        assert expected in say("update", "--case", CASE.id)[1]


def test_what_may_be_a_baseline_is_written() -> None:
    """Five runs, checked accuracy, and runs that this command made and refused."""
    made_here = {"baseline": BaselineReference(file=f".mlperf/update-x1/{FILE}")}
    for case_result in (
        measured(*(100.0,) * 5),
        measured(scored=True, verdict={"accuracy": verdicts.SCORED}),
        measured(outcome=Outcome.RECORDED, verdict=made_here),
    ):
        FILE.unlink(missing_ok=True)
        accept(case_result)
        assert FILE.exists()


def test_several_tests_are_one_baseline_beside_those_of_other_machines(say: Say) -> None:
    save(measured(test="tests/test_x.py::test[a]"), measured(test="tests/test_x.py::test[b]"))
    assert say.ends(0, "update", *WRITE).count(f"{CASE.id}\n") == 1
    other = replace(verdicts.SUBJECT, identity={"gpu": "NVIDIA H200", "ecc": False, "mig": None})
    accept(measured(*(50.0,) * 8, verdict={"subject": other}))
    assert [record.identity["ecc"] for record in stored().records] == [True, False]


def test_baselines_of_another_folder_must_be_named(say: Say) -> None:
    """The folder that git is to add is the one that was written."""
    used = "kept/H200/quick/resnet50/Offline.ort.fp16.json"
    kept = measured(verdict={"baseline": BaselineReference(file=used)})
    assert refusal(kept, say) == (
        f"the session was judged against {used}, not {FILE}; name the folder of its baselines: "
        "--baselines DIR"
    )
    output = say.ends(0, "update", "--baselines", "kept", *WRITE)
    assert output.endswith("; review and commit: git add kept\n")
    assert Path(used).exists()
    save(measured())
    output = say.ends(0, "update", "--baselines", "some folder/kept", *WRITE)
    assert output.endswith("; review and commit: git add 'some folder/kept'\n")


def test_a_record_that_was_changed_meanwhile_is_not_written_over(say: Say) -> None:
    accept(measured())
    record = stored().records[0]
    other = replace(record, target_qps=1.0)
    proposal = PerformanceProposal(
        result=measured(), file=FILE, old=other, new=record, limits={"throughput": 0.03}
    )
    with pytest.raises(BaselineError, match="changed during the measurement"):
        proposal.write()
    assert stored().records == (record,)


@pytest.mark.process
def test_only_named_cases_are_taken_and_a_refused_one_does_not_hinder_the_others(say: Say) -> None:
    other = replace(CASE, engine="trt")
    save(measured(100.0), measured(case=other))
    assert say.ends(1, "update", *WRITE).endswith(
        "wrote 1, refused 1; review and commit: git add baselines\n"
    )
    assert not FILE.exists()
    other = replace(CASE, engine="trt")
    save(measured(), measured(case=other))
    assert update("--case", other.id, *WRITE) == 0
    assert not FILE.exists()
    assert FILE.with_name("Offline.trt.fp16.json").exists()


def refusal(case_result: CaseResult, say: Say, *arguments: str) -> str:
    """Return why a result is refused, after checking that nothing was written."""
    files_at_start = {p: p.read_bytes() for p in Path("baselines").rglob("*.json")}
    save(case_result)
    lines = say.ends(1, "update", *arguments, *WRITE).splitlines()
    assert {p: p.read_bytes() for p in Path("baselines").rglob("*.json")} == files_at_start
    assert lines[-1] == "nothing to write, 1 refused"
    assert lines[1].partition(" ")[0] == case_result.verdict.case.id
    assert lines[2].startswith("  refused: ")
    return lines[2].removeprefix("  refused: ")


TEST = f"{SUITE}::test_performance[{CASE.id}]"
FEW = (
    "runs; a baseline needs 5; H200 is not on this machine; run on one that has it: "
    f'pytest "{TEST}" --mlperf-update='
)
KEPT = f"kept/{FILE.relative_to('baselines')}"


FAILED = (Outcome.INVALID, Outcome.ERROR, Outcome.GATE_FAIL)
GATE = {"gate": Gate(state=GateState.FAILED, samples=9, total=9)}
REFUSED: list[tuple[CaseResult, str]] = [
    (measured(handicap=0.1), "measured with --mlperf-handicap"),
    (measured(pretended=True), "measured with --mlperf-pretend"),
    *((measured(outcome=o, verdict={"headline": "it broke"}), f"{o} it broke") for o in FAILED),
    (measured(outcome=Outcome.EXPECTED, verdict=GATE), "gate failed on 9 samples"),
    (measured(verdict={"runs": ()}), "nothing was measured"),
    (measured(verdict={"subject": None}), "nothing was measured"),
    (
        measured(scored=True),
        f'accuracy was not checked; run all tests of the suite: pytest "{SUITE}"',
    ),
    (measured(*(100.0,) * 4), f"4 {FEW}missing"),
    (
        measured(*(100.0,) * 2, outcome=Outcome.IMPROVED),
        f'2 {FEW}replace --mlperf-reason "..."',
    ),
    (
        measured(
            outcome=Outcome.RECORDED,
            verdict={"baseline": BaselineReference(file=f".mlperf/update-x1/{KEPT}")},
        ),
        f"the session was judged against {KEPT}, not {FILE}; name the folder of its baselines: "
        "--baselines DIR",
    ),
    *(
        (
            result(replace(verdicts.GATE_FAIL, outcome=outcome)),
            f"{outcome} top1 71.650 < 75.695, 99 % of MLPerf's reference",
        )
        for outcome in FAILED
    ),
]


@pytest.mark.process
def test_what_may_never_be_a_baseline_is_refused(say: Say) -> None:
    reasons = [refusal(found, say) for found, _ in REFUSED]
    assert [
        (reason, expected)
        for reason, (_, expected) in zip(reasons, REFUSED, strict=True)
        if not reason.startswith(expected)
    ] == []
    assert list(Path("baselines").iterdir()) == []


def with_energy(joules: float) -> list[CaseResult]:
    """Return a session that measured samples a joule too."""
    runs = tuple(
        replace(run(n, throughput=100.0, samples_per_joule=joules), energy={Source.NVML: ENERGY})
        for n in range(8)
    )
    energy = replace(verdicts.POWER_DROP, case=CASE, runs=runs)
    return [measured(verdict={"runs": runs}), result(energy, limits={"samples_per_joule": 0.05})]


def latency(value: float) -> CaseResult:
    runs = tuple(run(number, latency_p90=value) for number in range(8))
    return measured(verdict={"runs": runs}, limits={"latency_p90": 0.03})


PROVISIONAL = measured(
    *(90.0,) * 8,
    outcome=Outcome.PROVISIONAL,
    verdict={"metrics": verdicts.PROVISIONAL_DROP.metrics},
)

WORSE: dict[str, tuple[list[CaseResult], list[CaseResult], str]] = {
    "drop": (
        [measured()],
        [measured(*(90.0,) * 8, outcome=Outcome.PERF_DROP)],
        "throughput 100.5 -> 90 (−10.4 %)",
    ),
    "provisional drop": ([measured()], [PROVISIONAL], ""),
    "higher latency": ([latency(0.010)], [latency(0.012)], "latency_p90 10 ms -> 12 ms (+20.0 %)"),
    "energy": (with_energy(10.0), with_energy(8.0), "samples_per_joule 10 -> 8 (−20.0 %)"),
    "lost energy": (
        with_energy(9.0),
        [measured(*(101.0,) * 8), with_energy(9.0)[1]],
        "samples_per_joule would be lost: this session did not measure it",
    ),
}


def test_worse_values_need_to_be_accepted_by_name(say: Say) -> None:
    for old, after, reason in WORSE.values():
        FILE.unlink(missing_ok=True)
        accept(*old)
        save(*after)
        refused = say.ends(1, "update", *WRITE)
        assert f"  refused: worse: {reason}" in refused
        assert f"; to accept: --accept-regression {CASE.id}" in refused
        assert update("--accept-regression", CASE.id, *WRITE) == 0
        runs = [run.metrics for run in after[0].verdict.runs]
        assert [run.metrics for run in stored().records[0].runs] == runs
    FILE.unlink()
    accept(latency(0.010))
    accept(latency(0.009))
    assert PROVISIONAL.verdict.warns


def test_what_does_not_fit_the_files_here_is_refused(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another case's baseline, too few runs, a damaged baseline, another working folder."""
    other = replace(CASE, workload="mobilenet")
    accept(measured(case=other))
    moved = Path("baselines/H200/quick/mobilenet/Offline.ort.fp16.json")
    FILE.parent.mkdir(parents=True)
    moved.rename(FILE)
    assert refusal(measured(), say) == (
        f"{FILE.resolve()}: this is the baseline of mobilenet-Offline-ort-fp16-H200, not of "
        f"{CASE.id}; move it away, or rename the engine entry"
    )
    FILE.unlink()

    assert refusal(measured(*(100.0,) * 4), say, "--no-runs") == (
        f'4 runs; a baseline needs 5; record them: pytest "{TEST}" --mlperf-update=missing'
    )
    FILE.write_text('{"schema": 1}')
    assert refusal(measured(), say).startswith(f"{FILE.resolve()}: ")
    Path("elsewhere/baselines").mkdir(parents=True)
    monkeypatch.chdir("elsewhere")
    assert refusal(measured(), say) == (
        f"{SUITE} does not exist; run this in pytest's root folder, or name the baselines "
        "folder: --baselines DIR"
    )


def complaint(say: Say, *arguments: str) -> str:
    return say.ends(2, "update", *arguments).removeprefix("pytest-mlperf: ").rstrip("\n")


def test_wrong_usage_is_one_sentence(say: Say) -> None:
    assert complaint(say).startswith("no results in .mlperf/runs; measure first (pytest suites)")
    save(measured(), measured(case=replace(CASE, engine="trt")))
    reason = '--write needs a reason: add --reason "why these values are accepted"'
    both = f"{CASE.id}, resnet50-Offline-trt-fp16-H200"
    several = f"2 cases in {RESULTS} match 'resnet50': {both}"
    unknown = f"no case 'bert' in {RESULTS}; known: {both}"
    rows = [
        (("gone.json",), "gone.json: cannot be read: No such file or directory"),
        (("--write",), reason),
        (("--write", "--reason", " "), reason),
        (("--case", "resnet50"), several),
        (("--accept-regression", "bert"), unknown),
    ]
    assert [complaint(say, *words) for words, _ in rows] == [text for _, text in rows]
    assert not FILE.exists()


@pytest.mark.slow
def test_a_damaged_or_newer_results_file_is_named(say: Say) -> None:
    save(measured())
    content = json.loads(RESULTS.read_text("utf-8"))
    rows = (
        ("", "not a results file: Expecting value: line 1 column 1 (char 0)"),
        ("[]", "not a results file: "),
        ("[" * 100_000, "not a results file: nested too deeply"),
        (json.dumps({**content, "cases": 3}), "not a results file: cases: must be a valid array, "),
        (json.dumps({**content, "run": None}), "not a results file: run: must be a valid string, "),
        (
            json.dumps({**content, "schema": 4}),
            "written by a newer pytest-mlperf (schema 4; this one reads up to 3): upgrade",
        ),
    )
    for text, message in rows:
        Path("r.json").write_text(text, "utf-8")
        assert complaint(say, "r.json").startswith(f"r.json: {message}")
