"""How long a case took in earlier sessions, from their results alone."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mlperf.cli.stored_results import case_named, matching, results_path
from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.core.verdict import Confirmation, InterleavedRuns
from pytest_mlperf.reports.costs import CaseCost, costs
from pytest_mlperf.stores.results import write_results
from pytest_mlperf.stores.sessions import MAX_SESSIONS, Sessions
from tests.reports import verdicts
from tests.reports.verdicts import CASE, result, run, session

START = dt.datetime(2026, 11, 20, 10, 0, 0, tzinfo=dt.UTC)
OTHER = replace(CASE, scenario=Scenario.SINGLE_STREAM)
KEY, OTHER_KEY = (CASE.id, "quick"), (OTHER.id, "quick")


def runs(case: str, *starts: int, duration_s: float = 5.0) -> tuple[Run, ...]:
    """Return runs that started this many seconds after the session."""
    return tuple(
        replace(
            run(number),
            started=(START + dt.timedelta(seconds=start)).isoformat(),
            duration_s=duration_s,
            folder=f"{case}.{number}",
        )
        for number, start in enumerate(starts, start=1)
    )


def measured(case: object, runs: Sequence[Run], **fields: object) -> CaseResult:
    verdict = replace(verdicts.OK, case=case, runs=tuple(runs))  # type: ignore[arg-type]
    return result(verdict, **fields)


def whole(*cases: CaseResult, seconds: float) -> Results:
    return replace(session(*cases), started=START.isoformat(), seconds=seconds)


def costs_of(*sessions: Results) -> dict[tuple[str, str], CaseCost]:
    return costs((Path("x"), one) for one in sessions)


def test_a_process_lasts_until_the_next_one_starts_or_the_session_ends() -> None:
    """Loading and the accuracy pass count; starts are whole seconds, which do not overlap."""
    first = measured(CASE, runs("a", 2, 22))
    second = measured(OTHER, runs("b", 30))
    assert costs_of(whole(first, second, seconds=42)) == {
        KEY: CaseCost(first_s=20.0, more_s=8.0, sessions=1),
        OTHER_KEY: CaseCost(first_s=12.0, more_s=12.0, sessions=1),
    }
    sessions = [whole(measured(CASE, runs("a", 0)), seconds=s) for s in (10, 30, 12)]
    assert costs_of(*sessions) == {KEY: CaseCost(first_s=12.0, more_s=12.0, sessions=3)}
    cases = (measured(CASE, runs("a", 0, duration_s=1.9)), measured(OTHER, runs("b", 1)))
    assert costs_of(whole(*cases, seconds=8))[KEY] == CaseCost(first_s=1.9, more_s=1.9, sessions=1)
    assert CaseCost(first_s=20.0, more_s=8.0).at_most_s(5) == 52.0


def test_waiting_and_other_runs_are_not_in_the_time_of_a_run() -> None:
    """Others were waited for, a run was INVALID and made again, the last was made in turns."""
    first, second, third = runs("a", 0, 40, 60)
    waited = replace(second, load=replace(second.load, waited_s=28.0))
    assert costs_of(whole(measured(CASE, (first, waited)), seconds=52))[KEY] == CaseCost(
        first_s=12.0, more_s=12.0, sessions=1
    )
    verdict = replace(verdicts.OK, case=CASE, runs=(first, third), invalid_runs=(second,))
    assert costs_of(whole(result(verdict), seconds=70))[KEY].more_s == 10.0
    assert costs_of(whole(result(verdict), seconds=70))[KEY].first_s == 40.0
    turns = replace(verdict, interleaved=InterleavedRuns(state=Confirmation.PROVEN, runs=10))
    assert costs_of(whole(result(turns), seconds=700))[KEY].more_s == 40.0


def test_results_without_times_are_left_out() -> None:
    overlapping = measured(CASE, runs("a", 0)), measured(OTHER, runs("b", 1))
    sessions = {
        "slowed": whole(measured(CASE, runs("a", 0), handicap=0.5), seconds=9),
        "pretended": whole(measured(CASE, runs("a", 0), pretended=True), seconds=9),
        "nothing measured": whole(measured(CASE, ()), seconds=9),
        "overlapping processes, as under -n": whole(*overlapping, seconds=20),
        "no time": whole(measured(CASE, [replace(run(), started="x")]), seconds=9),
        "before it": whole(measured(CASE, [replace(run(), started="2026-11-20")]), seconds=9),
        "accuracy only": whole(result(verdicts.UNGATED), seconds=9),
        "empty": whole(seconds=9),
    }
    assert [name for name, one in sessions.items() if costs_of(one)] == []


def test_sessions_are_read_newest_first_and_old_ones_are_not_read(tmp_path: Path) -> None:
    assert Sessions(tmp_path).files == []
    assert list(Sessions(tmp_path)) == []
    for number in range(MAX_SESSIONS + 3):
        file = tmp_path / "runs" / f"20261120-{number:06}-abcd" / "results.json"
        write_results(file, session(seconds=number))
    sessions = Sessions(tmp_path)
    seconds = [results.seconds for _, results in sessions]
    assert seconds == sorted(seconds, reverse=True)
    assert (len(seconds), seconds[0]) == (MAX_SESSIONS, MAX_SESSIONS + 2)
    newest = f"only the newest {MAX_SESSIONS} of {MAX_SESSIONS + 3} sessions were read"
    assert sessions.notes == [newest]


IDS = ["a-Offline-null-fp32-cpu", "a-Offline-null-fp32-cpu-2", "b-Server"]


def test_a_case_is_named_by_its_id_by_a_part_of_it_or_by_a_test() -> None:
    rows = {
        IDS[0]: IDS[0],
        "b": IDS[2],
        "SERVER": IDS[2],
        f"suites/x.mlperf.toml::test_accuracy[{IDS[0]}]": IDS[0],
        "test_performance[b-Server]": IDS[2],
        "offline": f"2 cases in r.json match 'offline': {IDS[0]}, {IDS[1]}",
        "": f"3 cases in r.json, name one: {', '.join(IDS)}",
        "b-Serfer": "no case 'b-Serfer' in r.json; did you mean 'b-Server'?",
        "x": f"no case 'x' in r.json; known: {', '.join(IDS)}",
        "test_performance[b]": "no case 'test_performance[b]' in r.json; known: ",
    }

    def named(name: str) -> str:
        try:
            return case_named(name, [*IDS, *IDS], " in r.json")
        except MlperfError as error:
            return str(error)

    assert {n: t for n, t in rows.items() if not named(n).startswith(t)} == {}
    many = [f"case-{number:02}" for number in range(40)]
    with pytest.raises(MlperfError, match=r"40 cases match 'case': case-00, .* and 35 more"):
        case_named("case", many)
    assert matching("case", many) == many


def test_results_are_named_by_file_folder_or_id_and_default_to_the_newest(tmp_path: Path) -> None:
    old, new = (tmp_path / "runs" / f"2026112{n}-000000-abcd" / "results.json" for n in (0, 1))
    with pytest.raises(MlperfError, match=r"no results in .*; measure first"):
        results_path(None, tmp_path)
    write_results(old, session(result(verdicts.OK)))
    write_results(new, session())
    rows = {None: new, str(old): old, str(old.parent): old, "20261120": old, "gone": Path("gone")}
    assert {text: results_path(text, tmp_path) for text in rows} == rows
    assert results_path(None, tmp_path, [CASE.id]) == old
    assert results_path(None, tmp_path, ["none"]) == new
    with pytest.raises(MlperfError, match="2 sessions match '2026': "):
        results_path("2026", tmp_path)
