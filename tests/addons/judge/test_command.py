"""`pytest-mlperf judge`: options, exit codes, reports and baselines."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf import Outcome
from pytest_mlperf.addons.judge import report
from pytest_mlperf.addons.judge.command import HELP
from pytest_mlperf.addons.judge.files import read_side, readers
from pytest_mlperf.addons.judge.model import Quantity
from pytest_mlperf.addons.judge.readers.table import column_of, reader_of
from pytest_mlperf.addons.judge.rows import DECIDING, FileComparison, Row
from pytest_mlperf.cli import main
from pytest_mlperf.core.history import histories_of
from pytest_mlperf.extension import read_results
from pytest_mlperf.judge import Direction
from tests.addons.judge.files import DATA, document, read, spread, write
from tests.addons.judge.recorded import serving
from tests.cli.text import Say, widest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def old(here: Path) -> Path:
    return serving(here / "old", side=0, slower=1.0, first_day=1)


SAME_DAY = (("a", 1.0), ("b", 1.1))


@pytest.fixture
def new(here: Path) -> Path:
    return serving(here / "new", side=1, slower=1.0, first_day=11)


@pytest.fixture
def slow(here: Path) -> Path:
    return serving(here / "slow", side=1, slower=1.12, first_day=11)


def first_line(text: str) -> str:
    return text.splitlines()[0]


# ---------------------------------------------------------------- exit codes


def test_an_unchanged_build_is_ok(say: Say, old: Path, new: Path) -> None:
    text = say.ends(0, "judge", new, "--against", old)

    assert first_line(text) == "ok  9 metrics within the limits"
    assert "now       5 runs of 5 sessions:" in text
    assert widest(text) <= 80


def test_a_slower_build_is_a_drop(say: Say, old: Path, slow: Path) -> None:
    text = say.ends(1, "judge", *sorted(slow.iterdir()), "--against", *sorted(old.iterdir()))

    assert first_line(text).startswith("PERF DROP  p50 TTFT +12.0 % at concurrency 64")


def test_another_workload_is_invalid(say: Say, here: Path, old: Path, new: Path) -> None:
    for file in new.iterdir():
        write(file, {**json.loads(file.read_text()), "num_prompts": 500, "completed": 500})
    text = say.ends(1, "judge", new, "--against", old)

    assert first_line(text).startswith("INVALID")
    assert "prompts differs: 1000 before, 500 now" in " ".join(text.split())


def test_one_session_a_side_is_provisional(say: Say, old: Path, slow: Path) -> None:
    pair = (slow / "run-0.json", "--against", old / "run-0.json")
    text = say.ends(0, "judge", *pair)

    assert first_line(text).startswith("PROVISIONAL  not proven: one session per side")
    assert re.search(r"\d+ pairs of runs prove or exclude a drop of 3 %", " ".join(text.split()))
    say.ends(1, "judge", *pair, "--fail-on", "provisional")


def test_the_change_between_the_sides_is_no_noise_of_the_plan(say: Say, here: Path) -> None:
    """Runs of one day without a host are one session, also those of two sides."""
    sides = [serving(here / name, side=0, slower=slower, first_day=1) for name, slower in SAME_DAY]
    for side in sides:
        for file in side.iterdir():
            write(file, {**json.loads(file.read_text()), "date": "20261101-080000"})
    pairs = r"\d+ pairs of runs prove or exclude a drop"
    planned = re.search(pairs, say.ends(0, "judge", sides[0], "--plan"))
    noted = re.search(
        pairs, " ".join(say.ends(0, "judge", sides[1], "--against", sides[0]).split())
    )

    assert planned is not None
    assert noted is not None
    assert noted[0] == planned[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("new",), "add --against FILE ... or --baseline NAME to compare with, or --plan"),
        (("new", "--against", "gone.json"), "gone.json: cannot be read"),
        (("new", "--baseline", "x"), "baselines/judged/x.json: no such baseline; record one with"),
        (("new", "--baseline", "../x"), "'../x' is not a valid baseline name"),
        (("new", "--against", "old", "--update", "missing"), "--update needs --baseline NAME"),
        (("new", "--against", "old", "--metrics", "ttft_p50,ttft_p51"), "no metric 'ttft_p51'"),
        (("new", "--against", "old", "--ignore", "nosuch"), "--ignore 'nosuch': no such condition"),
        (
            ("new", "--baseline", "x", "--update", "missing"),
            "--update needs --reason TEXT, which says why",
        ),
        (("new", "--against", "old", "--limit", "ttft"), "--limit ttft is not METRIC=SHARE"),
        (("new", "--against", "old", "--limit", "ttft=0"), "is not METRIC=SHARE"),
        (("new", "--against", "old", "--limit", "tfft=3%"), "no metric 'tfft' in these files"),
        (("new", "--against", "old", "--metrics", "tfft"), "no metric 'tfft' in these files"),
        (("new", "--against", "old", "--session-by", "hsot"), "no field 'hsot' for --session-by"),
        (("new", "--against", "old", "--session-by", "host"), "no field 'host' for"),
        (
            ("new", "--against", "old", "--report", "pdf=a"),
            "--report 'pdf=a' is not FORMAT=FILE with one of annotations, comment, csv",
        ),
        (
            ("new", "--against", "old", "--column", "ttft_p50=x"),
            "ttft_p50 is a time; add its unit",
        ),
        (("new", "--against", "old", "--point", "x"), "--point needs --column"),
        (("new", "--against", "new"), "are the same run, which cannot"),
        (
            ("new", "--against", "old", "--report", "json=old/run-0.json"),
            "--report: old/run-0.json is a result file",
        ),
        (("new", "--against", "old", "--report", "json=new"), "--report: new is a result file"),
    ],
)
@pytest.mark.usefixtures("old", "new")
def test_wrong_usage_is_one_sentence(say: Say, words: tuple[str, ...], message: str) -> None:
    text = say.ends(2, "judge", *words)

    assert message in text
    assert len(text.splitlines()) == 1


@pytest.mark.usefixtures("old", "new")
def test_an_empty_name_is_no_folder(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["judge", "", "--against", "old"])

    assert ended.value.code == 2
    assert "a file name is empty: is a variable unset?" in capsys.readouterr().err


def test_a_reader_that_cannot_be_loaded_is_named(
    say: Say, old: Path, new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib.metadata import EntryPoint

    from pytest_mlperf.addons.judge import files

    broken = EntryPoint("mine", "gone_module:READER", "pytest_mlperf.readers")
    monkeypatch.setattr(files, "entry_points", lambda group: [broken])
    readers.cache_clear()
    try:
        text = say.ends(3, "judge", new, "--against", old)
    finally:
        readers.cache_clear()

    assert "reader mine (gone_module) cannot be loaded: No module named 'gone_module'" in text


# ---------------------------------------------------------------- limits, metrics


def test_limits_and_metrics_are_the_users(say: Say, old: Path, slow: Path) -> None:
    say.ends(0, "judge", slow, "--against", old, "--limit", "ttft=20%")
    say.ends(
        0, "judge", slow, "--against", old, "--limit", "ttft_p50=0.2", "--limit", "ttft_p99=0.2"
    )
    say.ends(0, "judge", slow, "--against", old, "--metrics", "tpot, output_tokens_per_second")
    text = say.ends(1, "judge", slow, "--against", old, "--metrics", "ttft_mean")

    assert first_line(text).startswith("PERF DROP  mean TTFT")


def test_a_missing_point_is_an_error_unless_allowed(say: Say, old: Path, new: Path) -> None:
    for number in range(5):
        content = document("vllm-serve.json")
        content |= {"max_concurrency": 8, "date": f"202611{number + 1:02d}-090000"}
        write(old / f"c8-{number}.json", content | {"duration": 90.0 + number})
    text = say.ends(1, "judge", new, "--against", old)

    assert first_line(text).startswith(
        "INVALID  point at concurrency 8: measured only in the baseline"
    )
    say.ends(0, "judge", new, "--against", old, "--allow-missing")


# ---------------------------------------------------------------- reports


def test_every_report_format_has_the_verdict(say: Say, here: Path, old: Path, slow: Path) -> None:
    formats = {
        "json": "r.json",
        "markdown": "r.md",
        "junit": "r.xml",
        "annotations": "r.txt",
        "html": "r.html",
        "comment": "c.md",
        "csv": "r.csv",
    }
    options = [word for form, file in formats.items() for word in ("--report", f"{form}={file}")]
    say.ends(1, "judge", slow, "--against", old, *options)
    (case,) = read_results(here / "r.json").cases
    rows = {metric.metric: metric for metric in case.verdict.metrics}
    (test,) = ET.parse(here / "r.xml").getroot().iter("testcase")
    table = list(csv.DictReader((here / "r.csv").read_text("utf-8").splitlines()))

    assert (case.test, case.failed) == ("vllm::concurrency 64", True)
    assert case.verdict.outcome is rows["ttft_p50"].outcome is Outcome.PERF_DROP
    assert rows["ttft_p50"].baseline.value == pytest.approx(0.10845, rel=0.01)
    assert rows["ttft_p50"].change == pytest.approx(0.12, abs=0.01)
    assert (rows["ttft_p50"].runs, rows["ttft_p50"].baseline.runs) == (5, 5)
    assert rows["ttft_mean"].outcome is None
    failure = test.find("failure")
    assert failure is not None
    assert failure.get("message", "").startswith("PERF DROP p50 TTFT +12.0 % at concurrency 64")
    assert "pytest " not in str(failure.text)  # no command repeats the runs of another tool
    for name in ("r.md", "c.md"):
        assert "| PERF DROP | p50 TTFT | 108.4 ms | 121.5 ms |" in (here / name).read_text("utf-8")
    annotations = (here / "r.txt").read_text("utf-8").splitlines()
    assert annotations[0].startswith("::error title=concurrency_64-Benchmark-vllm-any-any::PERF")
    assert {row["metric"]: row["unit"] for row in table}["requests_per_second"] == "1/s"
    assert "p50 TTFT" in (here / "r.html").read_text("utf-8")


@pytest.mark.process
def test_the_store_history_and_merge_take_judged_results(
    say: Say, here: Path, old: Path, new: Path, slow: Path
) -> None:
    for side in (new, slow):
        file = f"json={side.name}.json"
        say("judge", side, "--against", old, "--report", file)
    first = say.ends(0, "store", "import", "new.json", "slow.json")
    again = say.ends(0, "store", "import", "new.json")
    history = say.ends(0, "history", "concurrency_64", "--metric", "ttft_p99")
    merged = say.ends(1, "merge", "slow.json", "--junit", "m.xml")

    assert "imported 2 sessions" in first
    assert "imported 0 sessions, 1 already there" in again
    assert "p99 TTFT, 2 sessions" in " ".join(history.split())
    assert "337.4 ms  PERF DROP" in history
    assert "1 test: 1 PERF DROP" in merged
    assert ET.parse(here / "m.xml").getroot().find(".//failure") is not None


def test_equal_comparisons_are_one_session(say: Say, here: Path, old: Path, new: Path) -> None:
    for name in ("a", "b"):
        say.ends(0, "judge", new, "--against", old, "--report", f"json={name}.json")

    assert (here / "a.json").read_bytes() == (here / "b.json").read_bytes()


def test_names_of_others_cannot_forge_a_report(say: Say, here: Path) -> None:
    name = "x |\n::error::forged <b>\x1b[31m"
    for side, folder in enumerate(("a", "b")):
        for number, factor in enumerate(spread(side, 5)):
            content = document("pytest-benchmark.json")
            content["benchmarks"] = [{"fullname": name, "stats": {"median": factor}}]
            content["datetime"] = f"2026-11-{side * 10 + number + 1:02d}T08:00:00"
            write(here / folder / f"{number}.json", content)
    formats = [
        "--report",
        "markdown=r.md",
        "--report",
        "annotations=r.txt",
        "--report",
        "junit=r.xml",
    ]
    text = say.ends(0, "judge", "b", "--against", "a", *formats)
    ET.parse(here / "r.xml")

    assert "\x1b" not in text
    assert "\n::error::" not in text
    assert "<b>" not in (here / "r.md").read_text("utf-8")
    assert (here / "r.txt").read_text("utf-8") == ""


# ---------------------------------------------------------------- baselines


def test_runs_that_complete_other_numbers_of_requests_are_one_history(
    say: Say, here: Path, old: Path
) -> None:
    """A time limit ends the runs of GuideLLM, so that each completes another number."""
    sessions = []
    for day, successful in ((1, 480), (2, 481)):
        content = document("guidellm.json")
        for benchmark in content["benchmarks"]:
            benchmark["metrics"]["request_totals"] |= {"successful": successful, "total": 490}
            benchmark["metrics"]["request_totals"]["incomplete"] = 490 - successful
            benchmark["start_time"] = 1.79e9 + day * 86400
        file = write(here / f"{day}.json", content)
        say("judge", file, "--baseline", f"b{day}", "--update", "missing", "--reason", "x",
            "--report", f"json=r{day}.json")  # fmt: skip
        sessions.append(read_results(here / f"r{day}.json"))

    assert {len(history.points) for history in histories_of(sessions)} == {2}


def test_a_session_that_became_a_baseline_stands_in_the_history(
    say: Say, here: Path, old: Path, new: Path, slow: Path
) -> None:
    """A first record, an addition and a replacement are sessions with an accepted baseline."""
    steps = (
        (old, "missing", "recorded"),
        (new, "", "ok"),
        (slow, "missing", "PERF DROP"),
        (slow, "replace", "recorded"),
    )
    sessions = []
    for number, (files, update, _) in enumerate(steps):
        report = f"json=r{number}.json"
        more = ("--update", update, "--reason", "new model") if update else ()
        say("judge", files, "--baseline", "llama", *more, "--report", report)
        sessions.append(read_results(here / f"r{number}.json"))
    outcomes = [(str(case.verdict.outcome), case.failed) for s in sessions for case in s.cases]
    (history,) = [h for h in histories_of(sessions) if h.series.metric == "ttft_p50"]

    assert outcomes == [(outcome, outcome == "PERF DROP") for *_, outcome in steps]
    assert {p.run for p in history.points} == {session.run for session in sessions}
    assert sum(history.accepted) == 2


def test_a_baseline_is_recorded_judged_and_replaced(
    say: Say, here: Path, old: Path, new: Path, slow: Path
) -> None:
    file = here / "baselines" / "judged" / "llama.json"
    update = ("--baseline", "llama", "--update", "missing", "--reason", "first")
    recorded = say.ends(0, "judge", old, *update)
    first = file.read_bytes()
    same = say.ends(0, "judge", new, "--baseline", "llama")
    drop = say.ends(1, "judge", slow, "--baseline", "llama")
    kept = say.ends(1, "judge", slow, *update)
    unchanged = file.read_bytes()
    replacing = ("--baseline", "llama", "--update", "replace", "--reason", "new model")
    replaced = say.ends(0, "judge", slow, *replacing)
    history = json.loads(file.read_bytes())["history"]

    assert "5 runs accepted; commit it" in recorded
    assert first_line(same).startswith("ok")
    assert first_line(drop).startswith("PERF DROP")
    assert "not changed: PERF DROP p50 TTFT" in " ".join(kept.split())
    assert unchanged == first
    assert "5 runs accepted" in replaced
    assert [entry["action"] for entry in history] == ["record", "replace"]
    assert [entry["reason"] for entry in history] == ["first", "new model"]
    assert history[1]["verdict"].startswith("PERF DROP")


def test_sessions_are_added_until_there_are_four(say: Say, here: Path, old: Path) -> None:
    lines = []
    for number in range(5):
        files = (old / f"run-{number}.json", "--baseline", "x", "--update", "missing")
        lines.append(say.ends(0, "judge", *files, "--reason", "nightly").splitlines()[-1])
    runs = json.loads((here / "baselines" / "judged" / "x.json").read_bytes())["runs"]

    assert len(runs) == 4
    assert "not changed: it already has 4 sessions; --update replace" in lines[4]


def test_a_baseline_judges_like_the_files_that_it_is_from(
    say: Say, here: Path, old: Path, slow: Path
) -> None:
    from pytest_mlperf.addons.judge import accepted
    from pytest_mlperf.addons.judge.judging import compare
    from pytest_mlperf.addons.judge.rows import Settings

    update = ("--baseline", "llama", "--update", "missing", "--reason", "first")
    say.ends(0, "judge", old, *update)
    candidate = read([slow]).runs
    of_files = compare(read([old]).runs, candidate, Settings())
    of_baseline = compare(accepted.load("llama"), candidate, Settings())

    assert of_baseline.rows == of_files.rows


def test_a_baseline_holds_no_prompts_paths_or_keys(say: Say, here: Path, old: Path) -> None:
    update = ("--baseline", "x", "--update", "missing", "--reason", "first")
    say.ends(0, "judge", old, *update)
    export = Path(shutil.copy(DATA / "aiperf.json", here / "a.json"))
    say.ends(0, "judge", export, "--baseline", "y", "--update", "missing", "--reason", "first")
    texts = [file.read_text("utf-8") for file in (here / "baselines" / "judged").iterdir()]

    assert len(texts) == 2
    forbidden = ("some words of a prompt", str(here), "sk-123", "secret", "10.0.0.1")
    assert [word for word in forbidden for text in texts if word in text] == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ('{"schema": 9}', "written by a newer pytest-mlperf"),
        ('{"schema": 1, "runs": 3}', "Restore it (git checkout"),
        ("<<<<<<< a\n{}\n=======\n{}\n>>>>>>> b\n", "holds a merge conflict"),
    ],
)
def test_a_damaged_baseline_is_named(
    say: Say, here: Path, new: Path, content: str, message: str
) -> None:
    write(here / "baselines" / "judged" / "x.json", content)
    text = say.ends(2, "judge", new, "--baseline", "x")

    assert "baselines/judged/x.json: " in text
    assert message in text


@pytest.mark.parametrize("started", [1e300, -1e300, -1.0])
def test_a_time_in_a_baseline_that_is_no_date_is_taken_as_unknown(
    say: Say, here: Path, old: Path, new: Path, started: float
) -> None:
    say.ends(0, "judge", old, "--baseline", "b", "--update", "missing", "--reason", "r")
    file = here / "baselines" / "judged" / "b.json"
    content = json.loads(file.read_text("utf-8"))
    for run in content["runs"]:
        run["started"] = started
    file.write_text(json.dumps(content), "utf-8")

    say.ends(0, "judge", new, "--baseline", "b")


def test_a_probable_drop_is_not_added_to_a_baseline(say: Say, here: Path, old: Path) -> None:
    files = (old / "run-0.json", "--baseline", "x", "--update", "missing", "--reason", "a")
    say.ends(0, "judge", *files)
    content = json.loads((old / "run-1.json").read_text())
    write(here / "slow.json", {**content, "median_ttft_ms": 160.0})
    text = say.ends(0, "judge", "slow.json", *files[1:])

    assert "not changed: PROVISIONAL not proven" in " ".join(text.split())


def test_a_session_by_any_key_of_the_metadata(say: Say, here: Path) -> None:
    for side, folder in enumerate(("a", "b")):
        for number, factor in enumerate(spread(side, 5)):
            content = document("vllm-serve.json")
            content |= {"night": f"{folder}{number}", "median_ttft_ms": 100 * factor}
            write(here / folder / f"{number}.json", content)
    text = say.ends(0, "judge", "b", "--against", "a", "--session-by", "night")

    assert "5 runs of 5 sessions" in text


def test_runs_of_two_measurements_are_no_baseline(say: Say, here: Path, old: Path) -> None:
    file = old / "run-3.json"
    write(file, {**json.loads(file.read_text()), "num_prompts": 500, "completed": 500})
    text = say.ends(2, "judge", old, "--baseline", "x", "--update", "missing", "--reason", "a")

    assert "not recorded: INVALID" in text
    assert "prompts differs inside the baseline: 1000, and 500 in" in text
    assert not (here / "baselines" / "judged" / "x.json").exists()


def test_runs_that_could_not_be_judged_are_no_baseline(say: Say, here: Path, old: Path) -> None:
    file = old / "run-3.json"
    healthy = json.loads(file.read_text())
    for defect in ({"completed": 500, "failed": 500}, {"median_ttft_ms": float("nan")}):
        write(file, {**healthy, **defect})
        text = say.ends(2, "judge", old, "--baseline", "x", "--update", "missing", "--reason", "a")
        assert "not recorded: INVALID" in text
    assert not (here / "baselines").exists()


def test_runs_of_a_baseline_are_added_once_and_may_replace_it(
    say: Say, here: Path, old: Path
) -> None:
    first, both = old / "run-0.json", (old / "run-0.json", old / "run-1.json")
    more = ("--baseline", "x", "--reason", "a", "--update")
    say.ends(0, "judge", first, *more, "missing")
    again = say.ends(0, "judge", first, *more, "missing")
    added = say.ends(0, "judge", *both, *more, "missing")
    fewer = say.ends(0, "judge", first, *more, "replace")

    assert "not changed: it already has these runs" in again
    assert "2 runs accepted" in added
    assert "1 run accepted" in fewer


def test_one_run_never_fails_and_says_so(say: Say, here: Path, old: Path, slow: Path) -> None:
    text = say.ends(0, "judge", slow / "run-0.json", "--against", old)

    assert "one run proves no drop: give more runs" in " ".join(text.split())


# ---------------------------------------------------------------- plans and tables


def test_a_plan_tells_runs_order_and_minutes(say: Say, old: Path) -> None:
    text = say.ends(0, "judge", old, "--plan", "--metrics", "ttft_p50", "--limit", "ttft=10%")

    assert "pairs of runs prove or exclude a drop of 10 %" in text
    assert "in this order: A B B A" in text
    assert "each session has one run, so the noise is assumed to be" in text


def test_a_table_by_its_columns(say: Say, here: Path) -> None:
    for side, folder in enumerate(("a", "b")):
        for number, factor in enumerate(spread(side, 6)):
            slow = 1.12 if side else 1.0
            rows = f"size,p50 [ms],rate\n1,{12.5 * factor},80\n8,{20 * factor * slow},400\n"
            write(here / folder / f"s{number}" / "t.csv", rows)
    columns = ("--column", "latency_p50=p50 [ms]:ms", "--point", "size")
    text = say.ends(1, "judge", "b", "--against", "a", *columns)
    other = say.ends(
        0,
        "judge",
        "b",
        "--against",
        "a",
        "--column",
        "steps=rate:steps/s:higher",
        "--point",
        "size",
    )
    unknown = say.ends(2, "judge", "b", "--against", "a", "--column", "latency_p50=p5:ms")

    assert first_line(text).startswith("PERF DROP  p50 latency +12.0 % at size 8")
    assert "steps" in other
    assert "no column 'p5'; its columns are size, p50 [ms], rate" in unknown


def test_rows_of_one_case_are_all_kept(say: Say, here: Path) -> None:
    """Also without a time, with a figure each, and with another separator."""
    for side, folder in enumerate(("a", "b")):
        rows = "".join(f"{12.5 * factor}\n" for factor in spread(side, 3))
        write(here / folder / "t.csv", f"p50;more\n{rows}")
    text = say.ends(0, "judge", "b", "--against", "a", "--column", "latency_p50=p50:ms")

    assert "3 runs of" in text
    assert "same run" not in text

    write(here / "b" / "t.csv", "p50,p50\n1,2\n")
    twice = say.ends(2, "judge", "b", "--against", "a", "--column", "latency_p50=p50:ms")
    assert "two columns have the name 'p50'" in twice


@pytest.mark.parametrize(
    ("cell", "unit", "seconds"),
    [
        ("12.5ms", "s", 0.0125),
        ("12.5 ms", "ms", 0.0125),
        ("1.25e-2s", "ms", 0.0125),
        ("12500µs", "ms", 0.0125),
        ("12.5", "ms", 0.0125),
        ("12.5 furlongs", "ms", None),
        ("ms", "ms", None),
    ],
)
def test_a_cell_may_have_its_own_unit(
    tmp_path: Path, cell: str, unit: str, seconds: float | None
) -> None:
    file = write(tmp_path / "t.csv", f"size,p50\n1,{cell}\n8,3\n")
    table = reader_of([column_of(f"latency_p50=p50:{unit}")], ["size"])
    (run,) = read_side([file], table).runs

    assert run.points[0].metrics.get("latency_p50") == (
        seconds if seconds is None else pytest.approx(seconds)
    )
    assert (seconds is None) == (cell in run.points[0].absent.get("latency_p50", ""))


def test_json_lines_are_a_table_as_well(say: Say, here: Path) -> None:
    for side, folder in enumerate(("a", "b")):
        for number, factor in enumerate(spread(side, 5)):
            line = {"case": "x", "seconds": 2 * factor, "date": f"2026-11-{number + 1:02d}"}
            write(here / folder / f"{number}.jsonl", json.dumps(line) + "\n")
    text = say.ends(
        0, "judge", "b", "--against", "a", "--column", "time_mean=seconds:s", "--point", "case"
    )

    assert "5 runs of 5 sessions" in text


# ---------------------------------------------------------------- width


def test_a_report_is_within_80_columns() -> None:
    """Also with long names, large numbers and all outcomes."""
    rows = [
        Row(
            tool="google-benchmark",
            point=point,
            metric=metric,
            outcome=outcome,
            quantity=Quantity(metric, "1/s", Direction.HIGHER),
            before=123_456_789_012.0,
            now=123_456_789_012.0,
            change=12.345,
            low=-0.345,
            high=12.345,
            limit=0.125,
            runs=(120, 120),
            direction="drop" if outcome is Outcome.PROVISIONAL else None,
            note="a note " * 20,
        )
        for point in ("x", "BM_Sort<std::vector<long long>, allocator>/1048576 threads:64 " * 3)
        for metric in ("time_p50", "a_counter_with_a_name_of_some_more_than_forty_characters")
        for outcome in DECIDING
    ]
    lines = report.lines(FileComparison(rows=tuple(rows), how="x " * 80), ("a b " * 40,) * 2, 80)

    assert max(map(len, lines)) <= 80
    assert any("characters" in line for line in lines)


# ---------------------------------------------------------------- cost and environment


def test_the_help_is_within_80_columns() -> None:
    assert max(map(len, HELP.splitlines())) <= 80


def test_twenty_files_take_less_than_two_seconds(old: Path, new: Path) -> None:
    """By this process's own clock of the processor, which other processes do not move."""
    from pytest_mlperf.addons.judge.judging import compare
    from pytest_mlperf.addons.judge.rows import Settings

    sides = [old / f"run-{n}.json" for n in range(5)], [new / f"run-{n}.json" for n in range(5)]
    begin = time.process_time()
    baseline, candidate = (read(side) for side in sides)
    compare(baseline.runs, candidate.runs, Settings())

    assert time.process_time() - begin < 1.0


@pytest.mark.slow
def test_a_thousand_files_with_ten_points_each(here: Path) -> None:
    from pytest_mlperf.addons.judge.judging import compare
    from pytest_mlperf.addons.judge.rows import Settings

    for side in (0, 1):
        for number, factor in enumerate(spread(side) * 50):
            content = document("pytest-benchmark.json")
            stats = {"median": factor + number / 1e6}
            content["benchmarks"] = [{"fullname": f"t{n}", "stats": stats} for n in range(10)]
            day = f"2026-{1 + number // 28 % 12:02d}-{1 + number % 28:02d}"
            content["datetime"] = f"{day}T08:00:00"
            write(here / str(side) / f"{number}.json", content)
    begin = time.process_time()
    baseline, candidate = (read([here / str(side)]) for side in (0, 1))
    result = compare(baseline.runs, candidate.runs, Settings())

    assert (len(baseline.runs), len(result.rows)) == (500, 10)
    assert time.process_time() - begin < 15


LACKING = ("numpy", "mlperf_loadgen", "pynvml", "torch", "onnxruntime")

WITHOUT = f"""
import sys
for name in {LACKING}:
    sys.modules[name] = None
from pytest_mlperf.cli import main
code = main(sys.argv[1:])
loaded = [name for name in ("pytest", "_pytest") if name in sys.modules]
print("loaded", loaded)
sys.exit(code)
"""


@pytest.mark.process
def test_it_works_without_what_measuring_needs(here: Path, old: Path, slow: Path) -> None:
    command: list[Any] = [sys.executable, "-c", WITHOUT, "judge", slow, "--against", old]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)

    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("PERF DROP  p50 TTFT")
    assert "loaded []" in done.stdout
