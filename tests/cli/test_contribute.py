"""`pytest-mlperf contribute` writes what its sessions prove, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.bench.contributed import slug
from pytest_mlperf.core.baseline import (
    Baseline,
    HistoryEntry,
    Property,
    Record,
    SessionNoise,
)
from pytest_mlperf.core.recording import baseline_run
from pytest_mlperf.core.results import Results
from pytest_mlperf.stores import baselines
from pytest_mlperf.stores.database import opened
from pytest_mlperf.stores.results import digest_of, write_results
from tests.reports import verdicts
from tests.reports.verdicts import CASE, SUITE, result, run, session

Say = Callable[..., tuple[int, str]]

FILE = Path("baselines/H200/quick/resnet50/Offline.ort.fp16.json")
OUT = Path("machines/rented-h200")
ASKED = ("contribute", "--machine", "Rented H200", "--by", "Acme")
IDENTITY: dict[str, Property] = {"gpu": "NVIDIA H200", "power_limit_w": 700}


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A baseline of four sessions of two runs, with the results of each."""
    monkeypatch.chdir(tmp_path)
    suite = Path(SUITE)
    suite.parent.mkdir(parents=True)
    suite.write_text("a suite", "utf-8")
    sessions = [measured(number) for number in range(4)]
    for one in sessions:
        write_results(Path(f".mlperf/runs/{one.run}/results.json"), one)
    baselines.save(FILE, recorded(sessions))


def measured(number: int, **changes: Any) -> Results:
    name = f"2026110{number + 1}-010000-abcd"
    runs = tuple(
        replace(
            run(n, throughput=100.0 + number + n),
            session=name,
            commit="1234567890ab",
            started=f"2026-11-0{number + 1}T01:0{n}:00+00:00",
        )
        for n in range(2)
    )
    subject = replace(verdicts.SUBJECT, identity=IDENTITY, fingerprint={"engine": "x"})
    verdict = replace(verdicts.OK, runs=runs, subject=subject)
    one = result(verdict, rests_on={SUITE: digest_of(Path(SUITE))}, **changes)
    other = result(replace(verdicts.OK, case=replace(CASE, workload="secret")))
    return replace(session(one, other), run=name, started=runs[0].started)


def recorded(sessions: list[Results], **changes: Any) -> Baseline:
    runs = tuple(
        replace(baseline_run(one), metrics={"throughput": one.metrics["throughput"]})
        for each in sessions
        for one in each.cases[0].verdict.runs
    )
    record = Record(
        identity=dict(IDENTITY),
        target_qps=None,
        qps_source=None,
        fingerprint={"engine": "x"},
        runs=runs,
        minimum_detectable_change={"throughput": 0.02},
        history=(
            HistoryEntry(
                date="2026-11-01",
                action="record",
                reason="first",
                commit=None,
                runs=8,
                old={},
                new={"throughput": 102.0},
            ),
        ),
    )
    return Baseline(
        round="v4.1",
        profile="quick",
        workload=CASE.workload,
        scenario=CASE.scenario,
        engine=CASE.engine,
        precision=CASE.precision,
        accelerator=CASE.accelerator,
        records=(replace(record, **changes),),
    )


def loaded(path: Path) -> Baseline:
    baseline = baselines.load(path)
    assert baseline is not None
    return baseline


def content() -> set[str]:
    return {str(path.relative_to(OUT)) for path in OUT.rglob("*") if path.is_file()}


def test_a_record_is_written_with_its_sessions_and_suite_and_can_be_checked(say: Say) -> None:
    """Of the sessions only the tests of the record are, whatever else they measured."""
    code, shown = say(*ASKED, "--source", "https://example.com/perf")

    assert (code, shown.splitlines()[0]) == (0, f"wrote 1 baseline of 4 sessions: {OUT}")
    assert content() == {
        "machine.json",
        "baselines/H200/quick/resnet50/Offline.ort.fp16.json",
        *(f"sessions/2026110{n}-010000-abcd.json" for n in range(1, 5)),
        f"project/{SUITE}",
    }
    assert all("secret" not in path.read_text("utf-8") for path in OUT.rglob("*.json"))
    (written,) = loaded(OUT / FILE).records
    assert [run.metrics["throughput"] for run in written.runs] == [
        run.metrics["throughput"]
        for run in recorded([measured(n) for n in range(4)]).records[0].runs
    ]
    assert say("contribute", "--check", OUT) == (
        0,
        f"{OUT}: Rented H200, by Acme: 1 baseline, each proven by its sessions\n",
    )


def test_sessions_are_found_in_a_store(say: Say) -> None:
    with opened("results.db", write=True) as store:
        for number in range(4):
            store.add(measured(number))
    for path in Path(".mlperf/runs").rglob("results.json"):
        path.unlink()

    code, _ = say(*ASKED, "--store", "results.db")

    assert code == 0
    assert len(content()) == 7


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"handicap": 0.1}, "has no run of 2026-11-01T01:00:00+00:00 with its values"),
        ({"pretended": True}, "has no run of 2026-11-01T01:00:00+00:00 with its values"),
    ],
)
def test_what_was_slowed_or_pretended_proves_nothing(
    changes: dict[str, Any], reason: str, say: Say
) -> None:
    write_results(Path(".mlperf/runs/20261101-010000-abcd/results.json"), measured(0, **changes))

    code, shown = say(*ASKED)

    assert code == 2
    assert reason in shown
    assert "no baseline is left to contribute" in shown
    assert not OUT.exists()


def changed(record: Record, **changes: Any) -> Record:
    """Return a record whose first run is another one."""
    first, *others = record.runs
    return replace(record, runs=(replace(first, **changes), *others))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda one: replace(one, runs=one.runs[:6]), "6 runs of 3 sessions; others need at least"),
        (
            lambda one: replace(one, fingerprint={"engine.weights": "dummy"}),
            "its weights are random",
        ),
        (lambda one: changed(one, commit="1234567890ab+"), "is of no commit: 1234567890ab+"),
        (lambda one: changed(one, commit=None), "is of no commit: None"),
        (lambda one: changed(one, metrics={"throughput": 1e9}), "has no run of 2026-11-01T01:00"),
        (lambda one: changed(one, session="none"), "the results of its session none are not here"),
        (lambda one: replace(one, identity={"gpu": "another"}), "has no run of 2026-11-01T01:00"),
    ],
)
def test_a_record_that_its_sessions_do_not_prove_is_refused_with_the_reason(
    change: Callable[[Record], Record], reason: str, say: Say
) -> None:
    (record,) = recorded([measured(number) for number in range(4)]).records
    baselines.save(FILE, replace(recorded([measured(0)]), records=(change(record),)))

    code, shown = say(*ASKED)

    assert code == 2
    assert f"refused: {FILE}, " in shown
    assert reason in " ".join(shown.split())


def test_results_that_were_changed_are_refused(say: Say) -> None:
    path = Path(".mlperf/runs/20261101-010000-abcd/results.json")
    raw = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**raw, "seconds": 1.0}), "utf-8")

    code, shown = say(*ASKED)

    assert code == 2
    assert "changed since it was written" in shown


def test_a_suite_that_is_no_longer_as_it_was_measured_stops_it(say: Say) -> None:
    Path(SUITE).write_text("another suite", "utf-8")

    code, shown = say(*ASKED)

    assert code == 2
    assert f"{SUITE}: changed since it was measured; check out the commit" in shown
    assert not OUT.exists()


@pytest.mark.parametrize("missing", ["--machine", "--by"])
def test_whose_values_they_are_must_be_said(missing: str, say: Say) -> None:
    place = ASKED.index(missing)

    assert say(*ASKED[:place], *ASKED[place + 2 :]) == (
        2,
        f"pytest-mlperf: {missing} is missing: others must know whose values these are\n",
    )


def test_nothing_is_written_over(say: Say) -> None:
    say(*ASKED)
    before = {path: path.read_bytes() for path in OUT.rglob("*") if path.is_file()}

    code, shown = say(*ASKED)

    assert code == 2
    assert "exists; nothing was written" in shown
    assert {path: path.read_bytes() for path in OUT.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        ((OUT / "more.txt").touch, "more.txt: not in machine.json"),
        ((OUT / f"project/{SUITE}").unlink, f"project/{SUITE}: missing"),
        (
            lambda: (OUT / f"project/{SUITE}").write_text("b", "utf-8"),
            f"project/{SUITE}: not as machine.json says",
        ),
        (
            (OUT / "sessions/20261101-010000-abcd.json").unlink,
            "the results of its session 20261101-010000-abcd are not here",
        ),
        (
            lambda: baselines.save(
                OUT / FILE, recorded([measured(n) for n in range(4)], identity={"gpu": "other"})
            ),
            "has no run of 2026-11-01T01:00:00+00:00 with its values",
        ),
    ],
)
def test_a_folder_that_is_not_as_it_says_fails_its_check(
    spoil: Callable[[], object], fault: str, say: Say
) -> None:
    say(*ASKED)
    spoil()

    code, shown = say("contribute", "--check", OUT)

    assert code == 1
    assert fault in " ".join(shown.split())


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            lambda one: replace(one, session_noise={"throughput": SessionNoise(ratio=5.9, df=3.0)}),
            "session_noise is not what its sessions make of it",
        ),
        (
            lambda one: replace(one, fingerprint={**one.fingerprint, "engine": "y"}),
            "fingerprint is not what its sessions make of it",
        ),
        (lambda one: replace(one, target_qps=999.0), "target_qps is not what its sessions"),
        (
            lambda one: replace(one, history=(replace(one.history[0], reason="by MLCommons"),)),
            "history is not what its sessions make of it",
        ),
        (lambda one: changed(one, warmed=True), "runs is not what its sessions make of it"),
        (
            lambda one: replace(one, minimum_detectable_change={"throughput": 1e-9}),
            "minimum_detectable_change is not what its sessions make of it",
        ),
    ],
)
def test_a_record_that_was_changed_with_its_digest_is_seen(
    change: Callable[[Record], Record], fault: str, say: Say
) -> None:
    say(*ASKED)
    baseline = loaded(OUT / FILE)
    baselines.save(OUT / FILE, replace(baseline, records=(change(baseline.records[0]),)))
    sealed_anew(FILE)

    code, shown = say("contribute", "--check", OUT)

    assert code == 1
    assert fault in " ".join(shown.split())
    assert "not as machine.json says" not in shown


@pytest.mark.parametrize("spoil", ["other", "none"])
def test_the_suite_is_the_one_that_was_measured(spoil: str, say: Say) -> None:
    say(*ASKED)
    name = Path("project", SUITE)
    if spoil == "other":
        (OUT / name).write_text("another suite", "utf-8")
    else:
        (OUT / name).unlink()
    sealed_anew(name)

    code, shown = say("contribute", "--check", OUT)

    assert code == 1
    assert f"project/{SUITE}: not the suite that was measured" in " ".join(shown.split())


def sealed_anew(name: Path) -> None:
    """Write the digest of a file, or that it is none of the folder, into its description."""
    place = OUT / "machine.json"
    raw = json.loads(place.read_text("utf-8"))
    raw["files"].pop(str(name))
    if (OUT / name).exists():
        raw["files"][str(name)] = digest_of(OUT / name)
    place.write_text(json.dumps(raw), "utf-8")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "machine.json: cannot be read"),
        ("{}", "machine.json"),
        (json.dumps({"schema": 9}), "written by a newer pytest-mlperf"),
    ],
)
def test_a_folder_without_a_description_is_no_contribution(
    content: str | None, message: str, say: Say
) -> None:
    OUT.mkdir(parents=True)
    if content is not None:
        (OUT / "machine.json").write_text(content, "utf-8")

    code, shown = say("contribute", "--check", OUT)

    assert code == 2
    assert message in shown


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("AWS p5.48xlarge", "aws-p5.48xlarge"),
        ("DGX H200 (700 W)", "dgx-h200-700-w"),
        ("../../etc", "etc"),
    ],
)
def test_a_machine_is_a_folder(name: str, folder: str) -> None:
    assert slug(name) == folder
